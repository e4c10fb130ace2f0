"""Anything hidden from a decommission spoils its receipt: on the machine, in an account, a firewall, a volume, a host.

On a real instance of the reference app, whose token a person reads first."""

import base64
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuaas_agent.firewall import table_name
from gpuaas_stack.stack import Stack
from tests.e2e.administrator import Platform
from tests.e2e.command_line import CommandLine
from tests.machines.conftest import ENVIRONMENT
from tests.machines.rollcall import SLUG, controllers, publish
from tests.machines.slices import make
from tests.support.waiting import wait_until

MACHINE = "canary"
PASSWORD = "a long enough password"
VERSION = "3.0.0"
PROGRAM = "/opt/rollcall/rollcall"
HIDE = """
set -eu
install -o rollcall -g rollcall /dev/null /usr/local/share/canary
mkdir -p /run/systemd/system
cp /etc/systemd/system/rollcall-controller.service /run/systemd/system/
useradd --system --non-unique --uid "$(id -u rollcall)" --no-create-home canary
echo 'rollcall ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/canary
chmod 0440 /etc/sudoers.d/canary
nft add table inet canary
nft 'add chain inet canary input { type filter hook input priority 0; }'
nft add rule inet canary input tcp dport 7400 accept
"""
SHOW = """
set -eu
rm -f /usr/local/share/canary /run/systemd/system/rollcall-controller.service /etc/sudoers.d/canary
systemctl daemon-reload
userdel canary
nft delete table inet canary
"""
INSTALL_NFT = """
set -eu
mkdir -p /opt/nft
base64 -d <<'END' | tar -xz -C /opt/nft
{archive}
END
printf '#!/bin/sh\\nLD_LIBRARY_PATH=/opt/nft exec /opt/nft/nft "$@"\\n' >/usr/local/sbin/nft
chmod 0755 /usr/local/sbin/nft
"""


@pytest.fixture
def instance(stack: Stack, cli: CommandLine, node: str, tmp_path: Path) -> Iterator[str]:
    make(cli, MACHINE)
    publish(cli, tmp_path, VERSION)
    account = tmp_path / "service-account.json"
    cli.run("service-account", "create", f"canary-{secrets.token_hex(4)}", "--app", SLUG, "--file", str(account))
    with controllers(stack, account, tmp_path) as running:
        running.start()
        deploy = ["instance", "deploy", SLUG, "--name", MACHINE, "--version", VERSION]
        yield str(cli.json(*deploy, "--place", f"controller={MACHINE}", "--wait")["id"])
    cli.json("allocation", "release", MACHINE, "--yes", "--wait", "--force", "--delete-volumes")


@pytest.fixture
def person(stack: Stack, cli: CommandLine, tmp_path: Path) -> CommandLine:
    """An admin of the project, with a log-in of their own."""
    email = f"ada-{secrets.token_hex(4)}@example.com"
    cli.run("user", "create", email, "--password-stdin", stdin=f"{PASSWORD}\n")
    cli.run("membership", "create", email, "project_admin", "--project", "research")
    own = CommandLine(tmp_path / "ada")
    login = [
        "login",
        "--api-url",
        stack.settings.api_url,
        "--email",
        email,
        "--password-stdin",
        "--project",
        "research",
    ]
    own.run(*login, stdin=f"{PASSWORD}\n")
    return own


def on_machine(cli: CommandLine, script: str) -> str:
    return cli.run("ssh", MACHINE, "--direct", "--", "sudo bash -s", stdin=script)


def test_a_token_is_read_and_canaries_spoil_the_receipt(
    cli: CommandLine, platform: Platform, person: CommandLine, instance: str
) -> None:
    read_the_token(cli, person)
    install_nft(cli)
    on_machine(cli, HIDE)
    volume = cli.json("volume", "create", "--name", "canary", "--size-gib", "1")
    cli.json("volume", "attach", "canary", MACHINE, "/srv/canary", "--wait")
    failed = cli.call("instance", "decommission", MACHINE, "--yes", "--wait")
    assert failed.returncode != 0
    operation, found = left_on_machine(cli, instance)
    assert found["files"] == "/usr/local/share/canary"
    assert found["units"] == "rollcall-controller.service"
    assert found["accounts"].splitlines() == ["user canary is rollcall", "/etc/sudoers.d/canary"]
    assert found["firewall"] == "tcp dport 7400 accept"
    assert set(found) == {"files", "units", "accounts", "firewall"}
    no_receipt = cli.call("receipt", "export", MACHINE, "--file", "/nonexistent/canary.json")
    assert "has not ended" in no_receipt.stderr

    # With these gone, the host's firewall and the volume are left: nobody can vouch for them.
    on_machine(cli, SHOW)
    hide_in_firewall()
    cli.run("operation", "retry", operation, "--wait")
    receipt = platform.ask(lambda client: client.receipts.get(instance)).receipt
    node_id = platform.machine(MACHINE).node_id
    assert receipt["left"] == []
    assert receipt["unverified"] == [
        f"platform: volumes: {volume['name']} at /srv/canary",
        f"platform: firewall: {node_id}",
    ]
    assert receipt["verdict"] == "unverified"
    assert {"files", "accounts", "processes", "units", "port", "firewall"} <= {p["check"] for p in receipt["probes"]}


def install_nft(cli: CommandLine) -> None:
    """As a person would who wants a firewall. A slice has no nft, and no network to fetch it from; this host's is of
    the same Debian."""
    libraries = subprocess.run(["ldd", "/usr/sbin/nft"], capture_output=True, text=True, check=True).stdout
    needed = [line.split()[2] for line in libraries.splitlines() if "=> /" in line and "libc.so" not in line]
    pack = ["tar", "-czh", "--transform", "s|.*/||", "-C", "/", "usr/sbin/nft", *(path[1:] for path in needed)]
    archive = subprocess.run(pack, capture_output=True, check=True).stdout
    on_machine(cli, INSTALL_NFT.format(archive=base64.encodebytes(archive).decode().strip()))


def read_the_token(cli: CommandLine, person: CommandLine) -> None:
    """As the access notes say it, without root on the machine."""
    notes = cli.json("instance", "show", MACHINE)["access_notes"]
    commands = {note["title"]: note["command"] for note in notes}
    assert not [command for command in commands.values() if "sudo" in command]
    assert '"workers":[]' in person.paste(commands["Call the roll"])
    words = commands["Read the token"].split()[1:]
    token = person.run(*words, "--password-stdin", stdin=f"{PASSWORD}\n")
    assert len(token.strip()) == 40

    def ask(given: str) -> int:
        forget = [f'{PROGRAM} ask --token-stdin POST /forget \'{{"name": "nobody"}}\'']
        return person.call("ssh", MACHINE, "--", *forget, stdin=given).returncode

    assert (ask(token), ask("another\n")) == (0, 1)
    # The provider's admin is not among the roles, and learns nothing.
    denied = cli.call(*words, "--password-stdin", stdin="whatever\n")
    assert (denied.returncode, denied.stdout) == (4, "")
    assert "only tenant_admin or project_admin or project_member may" in denied.stderr


def left_on_machine(cli: CommandLine, instance: str) -> tuple[str, dict[str, str]]:
    """Return the decommission that failed, and what its probes found."""
    operations = cli.json("operation", "list", "--instance", instance)
    (failed,) = [each for each in operations if each["kind"] == "decommission"]
    assert failed["error"]["code"] == "teardown_incomplete"
    (member,) = cli.json("operation", "show", failed["id"])["result"]["receipt"]["members"]
    assert not [check for check in member["checks"] if check["ok"] is None]
    return str(failed["id"]), {check["check"]: check["found"] for check in member["checks"] if check["ok"] is False}


def hide_in_firewall() -> None:
    """An element too many in the platform's own table, once the decommission has been asked for: the agent tells of it,
    and puts the table back."""
    table = table_name(ENVIRONMENT)
    subprocess.run(["nft", "add", "chain", "inet", table, "canary"], check=True)

    def is_back() -> bool:
        chains = subprocess.run(["nft", "list", "table", "inet", table], capture_output=True, text=True, check=True)
        return "canary" not in chains.stdout

    wait_until(is_back, "the agent puts the firewall back")
