"""A project changes its SSH authority, on real machines: both valid meanwhile, the old one worthless after."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuaas_stack.platform_services import ADMIN_EMAIL
from gpuaas_stack.stack import Stack
from tests.e2e.administrator import Platform
from tests.e2e.command_line import CommandLine
from tests.machines.people import SshFiles, log_in
from tests.machines.slices import SMALL, make, release
from tests.support.waiting import wait_until

DENIED = "Permission denied (publickey)"


@pytest.fixture(scope="module")
def machines(cli: CommandLine, node: str) -> Iterator[dict[str, str]]:
    yield {name: made["id"] for name, made in make(cli, "old-1", "old-2").items()}
    release(cli, *(machine["id"] for machine in cli.json("allocation", "list") if machine["status"] != "released"))


def test_both_are_valid_and_then_only_the_new_one(
    stack: Stack, cli: CommandLine, platform: Platform, machines: dict[str, str], tmp_path: Path
) -> None:
    admin = log_in(stack, tmp_path / "admin", ADMIN_EMAIL, stack.settings.admin_password_file.read_text().strip())
    (tmp_path / "ssh").mkdir()
    files = SshFiles(tmp_path / "ssh")
    public, env = files.key(), {"GPUAAS_TOKEN": admin.token}
    one, two = machines.values()

    def enter(machine: str, certificate: str, **more: Any) -> subprocess.CompletedProcess[str]:
        stream = admin.access(machine, public)
        words = files.words(machine, "gpuaas", stream, certificate=certificate, **more)
        return admin.run(*words, "true", env=env)

    before = admin.access(one, public, lifetime_seconds=900)
    (old_key,) = before["host_authority"].splitlines()
    refused = cli.call("ssh-authority", "retire", "--yes")
    assert refused.returncode == 5
    assert "rotate first" in refused.stderr

    # The machines are out of reach: that is said, and the old key stays.
    stack.supervision.remove_service("agent")
    platform.wait_for_node("host-one", "offline")
    rotated = cli.json("ssh-authority", "rotate")
    assert [version["state"] for version in rotated["versions"][-2:]] == ["active", "active"]
    assert {machine["name"] for machine in rotated["waiting"]} == set(machines)
    assert all("offline" in machine["reason"] for machine in rotated["waiting"])
    waits = cli.call("ssh-authority", "retire", "--yes")
    assert waits.returncode == 5
    assert "old-1" in waits.stderr
    assert "force" in waits.stderr
    assert cli.call("ssh-authority", "rotate").returncode == 5
    stack.start_agent()
    owner = platform.machine(one).project_id
    assert owner is not None

    def all_were_told() -> bool:
        return platform.ask(lambda client: client.ssh_authorities.get(owner)).waiting == []

    platform.wait_until(all_were_told, "all machines trust both")
    wait_until(lambda: cli.call("ssh", "old-1", "--", "true").returncode == 0, "the agent is back")

    # In between: certificates of both keys, hosts proved by the new one, a new machine.
    meanwhile = admin.access(one, public, lifetime_seconds=900)
    assert len(meanwhile["host_authority"].splitlines()) == 2
    new_key = meanwhile["host_authority"].splitlines()[1]
    assert signed_by(before["certificate"]) != signed_by(meanwhile["certificate"])
    assert enter(one, before["certificate"]).returncode == 0
    assert enter(one, meanwhile["certificate"]).returncode == 0
    assert enter(one, meanwhile["certificate"], authorities=[new_key]).returncode == 0
    stream = admin.access(one, public)
    words = files.words(one, "gpuaas", stream, certificate=before["certificate"])
    session = admin.start(*words, "echo ready; cat", env=env, stdin=subprocess.PIPE)
    assert session.stdout is not None
    assert session.stdin is not None
    assert session.stdout.readline().strip() == "ready"
    third = cli.json("allocation", "create", "--name", "young", *SMALL, "--wait")["id"]
    assert cli.ssh("young", "hostname").strip() == "young"

    retired = cli.json("ssh-authority", "retire", "--yes", "--wait")
    assert [version["state"] for version in retired["versions"][-2:]] == ["retired", "active"]
    assert DENIED in enter(one, before["certificate"]).stderr
    assert enter(one, meanwhile["certificate"]).returncode == 0
    after = admin.access(one, public)
    assert after["host_authority"] == new_key
    wrong = enter(one, after["certificate"], authorities=[old_key])
    assert "Host key verification failed" in wrong.stderr
    for machine in (one, two, third):
        assert enter(machine, admin.access(machine, public)["certificate"]).returncode == 0
    session.stdin.write("still here\n")
    session.stdin.flush()
    assert session.stdout.readline().strip() == "still here", "a session that was open is not ended by this"
    actions = {entry["action"] for entry in cli.json("audit", "list")}
    assert {"ssh_authority.rotate", "ssh_authority.retire"} <= actions
    admin.close()


def signed_by(certificate: str) -> str:
    words = ["ssh-keygen", "-L", "-f", "-"]
    said = subprocess.run(words, input=certificate, text=True, capture_output=True, check=True).stdout
    return next(line for line in said.splitlines() if "Signing CA" in line)
