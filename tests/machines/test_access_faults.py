"""The secrets server sealed and killed in the middle; and secrets looked for wherever they must not be."""

import base64
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuaas_stack.stack import Stack
from tests.e2e.command_line import GPUAAS, CommandLine
from tests.http.test_secret_canary import key_and_traces, processes
from tests.machines.conftest import kill
from tests.machines.people import PASSWORD, Person, make_person
from tests.machines.slices import make, release
from tests.support.database import dump
from tests.support.openbao import Vault
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def machine(cli: CommandLine, node: str) -> Iterator[str]:
    yield make(cli, "kept")["kept"]["id"]
    release(cli, "kept")


@pytest.fixture
def ada(stack: Stack, cli: CommandLine, machine: str, tmp_path: Path) -> Iterator[Person]:
    person = make_person(stack, cli, tmp_path, "ada")
    yield person
    person.close()


def test_openbao_sealed_and_killed_in_the_middle(stack: Stack, cli: CommandLine, machine: str, ada: Person) -> None:
    grant = cli.json("grant", "create", "kept", ada.email, "--wait")
    session = ada.start(str(GPUAAS), "ssh", "kept", "--", "echo ready; cat", stdin=subprocess.PIPE)
    assert session.stdout is not None
    assert session.stdin is not None
    assert session.stdout.readline().strip() == "ready"
    with Vault(stack.settings) as vault:
        assert vault.call("PUT", "sys/seal").status_code == 204
    refused = ada.cli.call("ssh", "kept", "--", "true")
    assert refused.returncode == 6
    assert "the secrets server is not ready" in refused.stderr
    rotating = cli.call("ssh-authority", "rotate")
    assert rotating.returncode == 6, "nothing half-made"
    session.stdin.write("still here\n")
    session.stdin.flush()
    assert session.stdout.readline().strip() == "still here"
    # A right ends also while nothing can be signed.
    cli.run("grant", "revoke", grant["id"], "--yes", "--wait")
    assert session.wait(60) != 0
    kill(stack, "openbao")
    wait_until(lambda: cli.call("ssh", "kept", "--", "true").returncode == 0, "the secrets server is back", 60)
    versions = cli.json("ssh-authority", "show")["versions"]
    assert len([version for version in versions if version["state"] == "active"]) == 1
    grant = cli.json("grant", "create", "kept", ada.email, "--wait")
    assert ada.cli.ssh("kept", "id -un").strip() == grant["login"]


def test_no_secret_is_where_it_must_not_be(
    stack: Stack, cli: CommandLine, machine: str, ada: Person, tmp_path: Path
) -> None:
    """Logs, databases, storage, processes and the machine's own disk. There is no backup to look into yet."""
    key, hidden = key_and_traces()
    (tmp_path / "lab").write_text(key)
    cli.run("credential", "create", "lab", "--private-key", str(tmp_path / "lab"))
    grants = [one for one in cli.json("grant", "list", "kept") if one["email"] == ada.email]
    grant = grants[0] if grants else cli.json("grant", "create", "kept", ada.email, "--wait")
    environment = {"TMPDIR": str(tmp_path)}
    words = [str(GPUAAS), "ssh", "kept", "--", "echo ready; cat"]
    session = ada.start(*words, env=environment, stdin=subprocess.PIPE)
    assert session.stdout is not None
    assert session.stdout.readline().strip() == "ready"
    (directory,) = tmp_path.glob("gpuaas-ssh-*")
    assert directory.stat().st_mode & 0o077 == 0
    private = (directory / "key").read_text().splitlines()
    token = (directory / "token").read_text()
    signature = token.rpartition(".")[2]
    assert len(signature) > 40
    hidden += [private[4], signature, PASSWORD, base64.b64encode(PASSWORD.encode()).decode()]
    body = ada.api.post(f"/v1/allocations/{machine}/access", json={"public_key": key}).text
    wrong = ada.api.post("/v1/users/me/ssh-keys", json={"name": "wrong", "public_key": key}).text

    found = []
    places = {"an error body": f"{body}{wrong}".encode(), "the database": dump(stack.settings).encode()}
    places |= {str(path): path.read_bytes() for path in stack.settings.state_dir.rglob("*") if path.is_file()}
    places |= processes()
    for name, content in places.items():
        # The administrator's own password file is where it belongs.
        found += [f"{name}: {secret[:12]}…" for secret in hidden if secret.encode() in content]
    pattern = "|".join(re.escape(secret) for secret in hidden)
    search = ["grep", "-rlE", "--binary-files=text", pattern, "/etc", "/home", "/root", "/tmp", "/var", "/run", "/opt"]
    instance = machine.replace("_", "-")
    done = subprocess.run(["lxc", "exec", instance, "--", *search], capture_output=True, text=True, check=False)
    found += [f"the machine's {line}" for line in done.stdout.splitlines()]
    machine_processes = "cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ"
    seen = subprocess.run(
        ["lxc", "exec", instance, "--", "sh", "-c", machine_processes], capture_output=True, check=False
    ).stdout
    found += [f"a process of the machine: {secret[:12]}…" for secret in hidden if secret.encode() in seen]
    assert found == []
    assert grant["login"].encode() in seen or b"cat" in seen, "the machine's processes were seen"
    session.kill()
    cli.run("credential", "delete", "lab", "--yes")
