"""What machines run on dies under them: the LXD daemon."""

import json
import os

import pytest

from gpuaas_stack.processes import ProcessId
from gpuaas_stack.stack import Stack
from tests.e2e.command_line import CommandLine
from tests.machines.conftest import ENVIRONMENT, leftovers
from tests.machines.test_life import BOOT, SMALL, release, steps, usage
from tests.support.waiting import wait_until


@pytest.fixture
def lxd(stack: Stack) -> int:
    """The daemon's process, where nobody else's machines are in its care."""
    others = sorted(path.name for path in stack.lxd_daemon.environments.iterdir() if path.name != ENVIRONMENT)
    if others:
        pytest.skip(f"LXD is shared with {', '.join(others)} at the moment; this test would disturb them")
    recorded = stack.lxd_daemon.run_dir / "lxd.json"
    if not recorded.exists():
        pytest.skip("LXD was not started by this stack, so it is not ours to kill")
    return ProcessId.from_json(json.loads(recorded.read_text())).pid


@pytest.mark.parametrize("step", ["instance", "start"])
def test_lxd_killed_while_a_machine_is_made(stack: Stack, cli: CommandLine, node: str, lxd: int, step: str) -> None:
    cli.run("allocation", "create", "--name", "bystander", *SMALL, "--wait")
    booted = cli.ssh("bystander", BOOT)
    made = cli.json("allocation", "create", "--name", "orphan", *SMALL)
    wait_until(lambda: step in steps(cli, "orphan"), f"its maker is at {step}")
    os.kill(lxd, 9)
    wait_until(
        lambda: cli.json("allocation", "show", "orphan")["status"] in ("active", "failed"), "it was made after all"
    )
    assert cli.json("allocation", "show", "orphan")["reason"] == ""
    assert cli.ssh("orphan", "hostname").strip() == "orphan"
    assert cli.ssh("bystander", BOOT) == booted, "a machine must not notice that LXD was away"
    for name in ("bystander", "orphan"):
        release(cli, name)
    assert set(usage(cli, made["id"])) == {"charged", "occupied"}
    assert leftovers() == []
