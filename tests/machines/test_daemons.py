"""What machines run on dies under them: the LXD daemon, of a host apart."""

from collections.abc import Iterator

import pytest

from gpuaas_stack.stack import Stack
from tests.e2e.administrator import Platform
from tests.e2e.command_line import CommandLine
from tests.machines.apart import HostApart, host_apart
from tests.machines.slices import BOOT, SMALL, make, release, usage


@pytest.fixture(scope="module")
def apart(stack: Stack, cli: CommandLine, platform: Platform, node: str) -> Iterator[HostApart]:
    with host_apart(stack, cli, platform) as host:
        yield host


@pytest.mark.parametrize("step", ["instance", "start"])
def test_lxd_killed_while_a_machine_is_made(cli: CommandLine, platform: Platform, apart: HostApart, step: str) -> None:
    make(cli, "bystander")
    # There is no route from here: all goes through the agent.
    booted = cli.ssh("bystander", BOOT)
    made = cli.json("allocation", "create", "--name", "orphan", *SMALL)
    platform.wait_for_step("orphan", step)
    apart.kill_lxd()
    platform.wait_until(lambda: platform.machine("orphan").status in ("active", "failed"), "it was made after all")
    assert cli.json("allocation", "show", "orphan")["reason"] == ""
    assert cli.ssh("orphan", "hostname").strip() == "orphan"
    assert cli.ssh("bystander", BOOT) == booted, "a machine must not notice that LXD was away"
    release(cli, "bystander", "orphan")
    assert set(usage(cli, made["id"])) == {"charged", "occupied"}
    assert apart.leftovers() == []
