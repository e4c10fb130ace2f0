"""A machine that the platform knows only by address, host key and credential, reached by a controller's SDK."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpuaas_sdk.errors import ApiError, DeliveryFailedError
from gpuaas_sdk.machines import COPIED_ARTIFACTS, CommandResult, MachineUnreachableError
from gpuaas_stack.stack import Stack
from tests.e2e.command_line import CommandLine
from tests.machines.controller import app_on, controller_on
from tests.machines.slices import release, usage
from tests.machines.stand_in import StandIn, addresses, external_host, make_key
from tests.machines.tunnels import STOP_SERVICE, made_ready, start_service
from tests.support.artifacts import promoted
from tests.support.tcp_services import converse
from tests.support.tunnels import ended_with
from tests.support.waiting import wait_until


@pytest.fixture(scope="module")
def lab(stack: Stack) -> Iterator[StandIn]:
    with external_host(stack, "lab") as host:
        yield host


def make_known(
    cli: CommandLine, lab: StandIn, name: str, credential_id: str, host_key: str | None = None
) -> dict[str, Any]:
    found = host_key or lab.sh("cat /etc/ssh/ssh_host_ed25519_key.pub").strip()
    where = ["--external-address", addresses(lab)[0], "--external-host-key", found]
    words = ["allocation", "create", "--name", name, *where, "--external-credential", credential_id]
    made = cli.json(*words)
    assert made["status"] == "active", "nobody had to be asked"
    return dict(made)


@pytest.fixture(scope="module")
def credential_id(cli: CommandLine, lab: StandIn, tmp_path_factory: pytest.TempPathFactory) -> str:
    directory = tmp_path_factory.mktemp("key")
    private, public = make_key(directory)
    lab.push("/root/.ssh/authorized_keys", public)
    made = cli.json("credential", "create", "lab", "--private-key", str(directory / "key"))
    assert private not in str(made)
    return str(made["id"])


async def test_a_controller_works_on_it(stack: Stack, cli: CommandLine, lab: StandIn, credential_id: str) -> None:
    before = lab.snapshot()
    made = make_known(cli, lab, "lab", credential_id)
    refused = cli.call("ssh", "lab", "--", "true")
    assert refused.returncode != 0
    assert "does not trust the project's SSH authority" in refused.stderr
    async with controller_on(stack, made["project_id"], made["id"]) as controller:
        machine = controller.machines.machine(made["id"])
        assert await machine.read("id -un; hostname") == CommandResult(0, f"root\n{lab.name}\n", "")
        await machine.run_step("greet", "echo hello > /root/greeting")
        await machine.write_file("/root/file", "content\n")
        assert lab.sh("cat /root/greeting /root/file") == "hello\ncontent\n"
        artifact = await promoted(controller.admin, b"for the lab\n", app_slug=controller.app_slug)
        path = await machine.deliver(artifact.digest)
        assert lab.sh(f"cat {path}") == "for the lab\n"
        lab.sh(f"echo changed > {path}")
        assert await machine.deliver(artifact.digest) == path, "it is brought once"
        assert lab.sh(f"cat {path}") == "changed\n"
        with pytest.raises(DeliveryFailedError, match="there is no artifact"):
            await machine.deliver(f"sha256:{'0' * 64}")
    lab.sh(f"rm -r /root/greeting /root/file {COPIED_ARTIFACTS}")
    release(cli, "lab")
    assert lab.snapshot() == before
    assert set(usage(cli, made["id"])) == {"charged", "occupied"}


async def test_a_port_of_it_is_reached_over_ssh_with_a_key_of_ones_own(
    stack: Stack, cli: CommandLine, lab: StandIn, credential_id: str, tmp_path: Path
) -> None:
    """The platform has no way there: the command runs ssh, which believes only the host key that the platform knows."""
    _, public = make_key(tmp_path)
    lab.sh(f"echo '{public.strip()}' >> /root/.ssh/authorized_keys")
    lab.sh(start_service(7000, "127.0.0.1"))
    made = make_known(cli, lab, "far", credential_id)
    own = CommandLine(Path(cli.environment["HOME"]), {"GPUAAS_PROJECT": "research"})
    async with app_on(stack, made["project_id"], made["id"]) as app:
        member = await made_ready(app)
        with ssh_agent(tmp_path / "key") as variables:
            own.environment |= variables
            words = ["tunnel", app.instance.name, "voice", "--login", "root", "-o", "json"]
            with ended_with(own.start(*words)) as tunnel:
                await tunnel.ready()
                assert (tunnel.said["member_id"], tunnel.said["through"]) == (member.id, "ssh")
                await asyncio.gather(*[converse(*await tunnel.connect(), blocks) for blocks in (0, 1, 100)])
        refused = await app.admin.members.port(member.id, "voice")
        assert not refused.through_agent
        with pytest.raises(ApiError, match="far is an external machine: tunnel is not possible, no agent"):
            await app.admin.open_port(member.id, "voice")
    lab.sh(STOP_SERVICE)
    release(cli, "far")


@contextmanager
def ssh_agent(key: Path) -> Iterator[dict[str, str]]:
    """A person's own agent, which has the key."""
    socket = key.parent / "agent"
    process = subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.DEVNULL)
    try:
        wait_until(socket.exists, "the agent listens")
        variables = {"SSH_AUTH_SOCK": str(socket)}
        subprocess.run(["ssh-add", "-q", str(key)], env={**os.environ, **variables}, check=True)
        yield variables
    finally:
        process.terminate()
        process.wait()


async def test_through_sudo_as_another_user(stack: Stack, cli: CommandLine, lab: StandIn, credential_id: str) -> None:
    lab.sh(
        "useradd --create-home worker; install -d -o worker -m 700 /home/worker/.ssh;"
        " install -o worker -m 600 /root/.ssh/authorized_keys /home/worker/.ssh/;"
        " echo 'worker ALL=(ALL) NOPASSWD: ALL' > /etc/sudoers.d/worker"
    )
    found = lab.sh("cat /etc/ssh/ssh_host_ed25519_key.pub").strip()
    where = ["--external-address", addresses(lab)[0], "--external-host-key", found, "--external-login", "worker"]
    made = cli.json("allocation", "create", "--name", "sudo", *where, "--external-credential", credential_id)
    async with controller_on(stack, made["project_id"], made["id"]) as controller:
        machine = controller.machines.machine(made["id"])
        assert (await machine.read("id -un")).stdout == "root\n"
    release(cli, "sudo")
    lab.sh("rm /etc/sudoers.d/worker; userdel --remove worker 2>/dev/null")


async def test_another_host_key_or_credential_is_not_believed(
    stack: Stack, cli: CommandLine, lab: StandIn, credential_id: str, tmp_path: Path
) -> None:
    other = make_key(tmp_path)[1].strip()
    made = make_known(cli, lab, "impostor", credential_id, other)
    async with controller_on(stack, made["project_id"], made["id"]) as controller:
        with pytest.raises(MachineUnreachableError, match="did not prove its identity, so nothing was sent"):
            await controller.machines.machine(made["id"]).read("true")
    release(cli, "impostor")
    wrong = cli.json("credential", "create", "wrong", "--private-key", str(tmp_path / "key"))
    made = make_known(cli, lab, "locked", str(wrong["id"]))
    async with controller_on(stack, made["project_id"], made["id"]) as controller:
        with pytest.raises(MachineUnreachableError, match="refused the stored key"):
            await controller.machines.machine(made["id"]).read("true")
    release(cli, "locked")
