"""A machine that the platform knows only by address, host key and credential, reached by a controller's SDK."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuaas_sdk.errors import DeliveryFailedError
from gpuaas_sdk.machines import CommandResult, MachineUnreachableError
from gpuaas_stack.stack import Stack
from tests.e2e.command_line import CommandLine
from tests.machines.conftest import ENVIRONMENT, SLOT, TAG
from tests.machines.controller import controller_on
from tests.machines.stand_in import StandIn, addresses, lxc, stand_in
from tests.machines.test_life import release, usage
from tests.support.waiting import wait_until

BRIDGE = f"gptest-ext{SLOT}"
# The last network of the environment's range: no project of these tests gets that far.
SUBNET = f"10.{89 + SLOT}.255"


@pytest.fixture(scope="module")
def lab(stack: Stack) -> Iterator[StandIn]:
    """On a bridge of the tests' own, which the host reaches and nobody else uses."""
    settings = ["ipv4.nat=false", "ipv6.address=none", f"ipv4.address={SUBNET}.1/24", f"{TAG}={ENVIRONMENT}"]
    lxc("network", "create", BRIDGE, *settings)
    try:
        nic = f"eth0 nic nictype=bridged parent={BRIDGE} name=eth0"
        with stand_in(stack, "lab", nic) as host:
            wait_until(lambda: addresses(host), "the external machine has an address")
            yield host
    finally:
        lxc("network", "delete", BRIDGE)


def make_key(directory: Path) -> tuple[str, str]:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(directory / "key")], check=True)
    return (directory / "key").read_text(), (directory / "key.pub").read_text()


def make_known(cli: CommandLine, lab: StandIn, name: str, credential_id: str, host_key: str | None = None) -> dict:  # type: ignore[type-arg]
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
        with pytest.raises(DeliveryFailedError, match="no agent of the platform is on it"):
            await machine.deliver(f"sha256:{'0' * 64}")
    lab.sh("rm /root/greeting /root/file")
    release(cli, "lab")
    assert lab.snapshot() == before
    assert set(usage(cli, made["id"])) == {"charged", "occupied"}


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
