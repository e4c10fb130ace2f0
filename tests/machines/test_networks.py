"""A node whose networks are not as wanted: closed, said, mended."""

import fcntl
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from gpuaas_stack.stack import Stack
from tests.e2e.administrator import Platform
from tests.e2e.command_line import CommandLine
from tests.machines.slices import SMALL, make, release
from tests.support.firewall import firewalls


@contextmanager
def repair_held_up(stack: Stack) -> Iterator[None]:
    """Whoever changes the firewall waits for this lock: the agent sees what is lost, and cannot put it back."""
    with (stack.settings.state_dir / "agent" / "firewall.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def test_a_node_without_its_firewall_takes_no_machines_until_it_is_back(
    stack: Stack, cli: CommandLine, platform: Platform, node: str
) -> None:
    make(cli, "here")
    environment = stack.settings.environment
    assert len(firewalls(environment)) == 1
    with repair_held_up(stack):
        # Our table only: a flush of everything would take that of LXD from others.
        subprocess.run(["nft", "delete", "table", "inet", f"gpuaas-{environment}"], check=True)
        platform.wait_for_node(node, "impaired")
        shown = json.loads(cli.run("node", "show", node, "-o", "json"))
        assert [found["kind"] for found in shown["conditions"]] == ["firewall"]
        assert "the table is missing" in cli.run("node", "show", node)
        waiting = cli.json("allocation", "create", "--name", "later", *SMALL)
        assert waiting["reason"] == "waiting for capacity: no node is ready"
        assert cli.on("here", "hostname").strip() == "here", "machines that are there go on"
    platform.wait_for_node(node, "ready")
    assert len(firewalls(environment)) == 1
    platform.wait_until(lambda: platform.machine("later").status == "active", "the machine that waited is made")
    release(cli, "here", "later")
