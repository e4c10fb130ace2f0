"""Browser terminals on a real machine."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.sync.client import ClientConnection, connect

from gpuaas_stack.stack import Stack
from tests.e2e.command_line import CommandLine
from tests.machines.people import PASSWORD, Person, make_person
from tests.machines.slices import make, release
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def machine(cli: CommandLine, node: str) -> Iterator[str]:
    yield make(cli, "seen")["seen"]["id"]
    release(cli, "seen")


@pytest.fixture(scope="module")
def ada(stack: Stack, cli: CommandLine, machine: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Person]:
    person = make_person(stack, cli, tmp_path_factory.mktemp("homes"), "ada")
    yield person
    person.close()


class Browser:
    """As little of a terminal as a test needs."""

    def __init__(self, stack: Stack, machine: str, headers: dict[str, str], query: str = "") -> None:
        url = stack.settings.api_url.replace("http", "ws", 1)
        self._socket: ClientConnection = connect(
            f"{url}/v1/allocations/{machine}/terminal{query}", additional_headers=headers, open_timeout=30
        )
        self.shown = ""
        self.end: dict[str, Any] | None = None

    def type(self, text: str) -> None:
        self._socket.send(text.encode())

    def resize(self, columns: int, rows: int) -> None:
        self._socket.send(json.dumps({"type": "resize", "columns": columns, "rows": rows}))

    def read(self, seconds: float = 0.2) -> str:
        """The output so far."""
        try:
            while self.end is None:
                message = self._socket.recv(timeout=seconds)
                if isinstance(message, str):
                    self.end = json.loads(message)
                else:
                    self.shown += message.decode(errors="replace")
        except (TimeoutError, ConnectionClosed):
            pass
        return self.shown

    def wait_for(self, text: str) -> None:
        wait_until(lambda: text in self.read(), f"{text!r} is shown", 30)

    def wait_for_end(self) -> dict[str, Any]:
        wait_until(lambda: self.read(0.05) is not None and self.end, "the terminal has ended", 30, 0.02)
        assert self.end is not None
        return self.end

    def close(self) -> None:
        self._socket.close()


def bearer(person: Person) -> dict[str, str]:
    return {"Authorization": f"Bearer {person.token}"}


def audited(cli: CommandLine, action: str) -> list[dict[str, Any]]:
    return list(cli.json("audit", "list", "--action", action))


def test_a_terminal_from_the_first_key_to_the_audit_trail(
    stack: Stack, cli: CommandLine, machine: str, ada: Person
) -> None:
    with pytest.raises(InvalidStatus) as refused:
        Browser(stack, machine, bearer(ada))
    assert refused.value.response.status_code == 403
    grant = cli.json("grant", "create", "seen", ada.email, "--wait")
    browser = Browser(stack, machine, bearer(ada), "?columns=100&rows=30")
    browser.type("id -un; stty size; echo $TERM\n")
    browser.wait_for(grant["login"])
    browser.wait_for("30 100")
    browser.wait_for("xterm-256color")
    browser.resize(132, 43)
    browser.resize(0, 99999)
    browser.type("stty size\n")
    browser.wait_for("43 132")
    browser.type("sleep 1; exit 3\n")
    assert browser.wait_for_end() == {"type": "end", "reason": "ended", "exit_status": 3}
    wait_until(lambda: audited(cli, "terminal.close"), "its end is in the audit trail")
    (opened,), (closed,) = audited(cli, "terminal.open"), audited(cli, "terminal.close")
    assert (opened["target"], opened["detail"]["login"]) == (machine, grant["login"])
    assert (closed["detail"]["reason"], closed["detail"]["grant"]) == ("ended", opened["detail"]["grant"])
    assert closed["detail"]["seconds"] >= 1

    # A browser's cookie counts on pages of the platform only.
    with httpx.Client(base_url=stack.settings.api_url) as http:
        answer = http.post("/v1/auth/session", json={"email": ada.email, "password": PASSWORD})
        assert answer.status_code < 300, answer.text
        cookie = answer.headers["set-cookie"].partition(";")[0]
    own = Browser(stack, machine, {"Cookie": cookie, "Origin": stack.settings.api_url})
    own.type("echo from the page\n")
    own.wait_for("from the page")
    own.close()
    for origin in ({"Origin": "https://evil.example"}, {}):
        with pytest.raises(InvalidStatus) as stranger:
            Browser(stack, machine, {"Cookie": cookie, **origin})
        assert stranger.value.response.status_code == 403
    for query in ("?columns=0", "?rows=x", "?columns=99999"):
        with pytest.raises(InvalidStatus) as bad:
            Browser(stack, machine, bearer(ada), query)
        assert bad.value.response.status_code == 422


def test_a_terminal_ends_when_nobody_types_and_when_the_right_ends(
    stack: Stack, cli: CommandLine, machine: str, ada: Person
) -> None:
    (grant,) = [one for one in cli.json("grant", "list", "seen") if one["email"] == ada.email]
    # The stack of these tests waits for ten seconds; what a program shows is no typing.
    idle = Browser(stack, machine, bearer(ada))
    idle.type("while sleep 1; do echo busy; done\n")
    idle.wait_for("busy")
    assert idle.wait_for_end()["reason"] == "idle"
    last = Browser(stack, machine, bearer(ada))
    last.type("echo ready; sleep 603\n")
    last.wait_for("ready")
    cli.json("grant", "revoke", grant["id"], "--yes", "--wait")
    assert last.wait_for_end() == {"type": "end", "reason": "revoked", "exit_status": None}
    assert "sleep 603" not in cli.ssh("seen", "ps -e -o args=")
    reasons = {entry["detail"]["reason"] for entry in audited(cli, "terminal.close")}
    assert reasons >= {"ended", "idle", "revoked", "gone"}
    with pytest.raises(InvalidStatus):
        Browser(stack, machine, bearer(ada))
    streams = audited(cli, "access.close_stream")
    assert any(entry["detail"]["cut"] and entry["detail"]["bytes_from_machine"] > 0 for entry in streams)
