"""LXD's answers, as the agent's two families of errors."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpuaas_agent.errors import LxdError, LxdUnavailableError, reason_of
from gpuaas_agent.lxd import LIST_ATTEMPTS, Lxd


class Daemon:
    """Says what the test told it to say, in LXD's envelope."""

    def __init__(self) -> None:
        self.answers: dict[str, dict[str, Any]] = {}
        self.first_answers: dict[str, list[dict[str, Any]]] = {}
        """By path: given before the answer above, once each."""
        self.asked: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, path, _ = head.split(" ", 2)
        self.asked.append(f"{method} {path}")
        path = path.partition("?")[0]
        first = self.first_answers.get(path)
        answer = first.pop(0) if first else self.answers.get(path, error(404, "not found"))
        body = json.dumps(answer).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body))
        writer.write(body)
        await writer.drain()
        writer.close()


def error(code: int, message: str) -> dict[str, Any]:
    return {"type": "error", "error_code": code, "error": message}


def sync(metadata: Any) -> dict[str, Any]:
    return {"type": "sync", "metadata": metadata}


def operation(code: int, message: str = "") -> dict[str, Any]:
    return sync({"status_code": code, "err": message, "metadata": None, "description": "Deleting instance"})


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    made = Daemon()
    async with await asyncio.start_unix_server(made.serve, tmp_path / "lxd.socket"):
        yield made


@pytest.fixture
async def lxd(tmp_path: Path) -> AsyncIterator[Lxd]:
    client = Lxd(tmp_path / "lxd.socket")
    yield client
    await client.aclose()


async def test_a_daemon_that_is_away_comes_back_later(lxd: Lxd) -> None:
    with pytest.raises(LxdUnavailableError, match="does not answer at") as caught:
        await lxd.read_server()
    assert "ConnectError" not in str(caught.value), "words, not the name of a class"


def test_an_error_without_words_is_named_by_its_kind() -> None:
    assert reason_of(TimeoutError()) == "TimeoutError"
    assert reason_of(OSError("refused")) == "refused"


async def test_what_is_not_there_is_none_and_other_errors_are_raised(daemon: Daemon, lxd: Lxd) -> None:
    assert await lxd.find_instance("alc-1") is None
    daemon.answers["/1.0/instances/alc-1"] = error(500, "disk full")
    with pytest.raises(LxdError, match="disk full"):
        await lxd.find_instance("alc-1")


async def test_an_operation_is_waited_for(daemon: Daemon, lxd: Lxd) -> None:
    daemon.answers["/1.0/instances/alc-1"] = {"type": "async", "operation": "/1.0/operations/o1"}
    daemon.answers["/1.0/operations/o1/wait"] = operation(200)
    await lxd.delete_instance("alc-1")
    daemon.answers["/1.0/operations/o1/wait"] = operation(400, "it is busy")
    with pytest.raises(LxdError, match="it is busy"):
        await lxd.delete_instance("alc-1")
    del daemon.answers["/1.0/operations/o1/wait"]
    with pytest.raises(LxdUnavailableError, match="lost the operation"):
        await lxd.delete_instance("alc-1")


async def test_only_what_changes_this_instance_is_waited_for(daemon: Daemon, lxd: Lxd) -> None:
    def running(name: str, kind: str, instance: str) -> dict[str, Any]:
        return {"id": name, "class": kind, "resources": {"instances": [f"/1.0/instances/{instance}"]}}

    daemon.answers["/1.0/operations"] = sync(
        {
            "running": [
                running("other", "task", "alc-2"),
                running("shell", "websocket", "alc-1"),
                running("mine", "task", "alc-1"),
            ]
        }
    )
    daemon.answers["/1.0/operations/mine/wait"] = operation(400, "it failed")
    await lxd.settle_instance("alc-1")
    assert [path.split("/")[3] for path in daemon.asked[1:]] == ["mine"]


async def test_a_list_is_read_again_where_something_in_it_was_deleted_meanwhile(daemon: Daemon, lxd: Lxd) -> None:
    path = "/1.0/network-acls"
    daemon.first_answers[path] = [error(404, "Failed getting ACL usage: Network ACL not found")]
    daemon.answers[path] = sync([{"name": "gp1", "config": {}}])
    assert [acl.name for acl in await lxd.list_acls()] == ["gp1"]


async def test_a_list_that_is_never_there_is_an_error(daemon: Daemon, lxd: Lxd) -> None:
    with pytest.raises(LxdError, match="not found"):
        await lxd.list_volumes("nowhere")
    assert len(daemon.asked) == LIST_ATTEMPTS
