"""The LXD daemon dies under the machines of a host apart."""

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpuaas_stack.stack import Stack
from tests.e2e.administrator import Platform
from tests.e2e.command_line import CommandLine
from tests.machines.apart import NAME, HostApart, host_apart
from tests.machines.slices import BOOT, SMALL, make, release, usage
from tests.support.waiting import wait_until

SERVICE = 8000


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


@contextmanager
def service_of(host: HostApart) -> Iterator[None]:
    """A service of the host on all of its addresses, as an administrator might run one."""
    words = host.command("socat", f"TCP-LISTEN:{SERVICE},fork,reuseaddr", "PIPE")
    with subprocess.Popen(words, stderr=subprocess.DEVNULL) as process:
        try:
            knock = host.command("bash", "-c", f"</dev/tcp/127.0.0.1/{SERVICE}")
            wait_until(lambda: subprocess.run(knock, capture_output=True).returncode == 0, "the service listens")
            yield
        finally:
            process.kill()


def reach(cli: CommandLine, machine: str, address: str, port: int) -> str:
    """Say what comes of a connection, from a machine."""
    return cli.ssh(machine, f"timeout 5 bash -c '</dev/tcp/{address}/{port}' 2>&1 && echo open || echo closed").split()[
        -1
    ]


def test_networks_stay_closed_when_lxd_cannot_start_them(
    cli: CommandLine, platform: Platform, apart: HostApart
) -> None:
    """LXD killed just after it has started a name server: the next one finds the gateway's address taken."""
    machine = make(cli, "closed")["closed"]
    gateway = machine["address"].rsplit(".", 1)[0] + ".1"
    with service_of(apart):
        assert reach(cli, "closed", gateway, SERVICE) == "closed"
        for record in apart.stack.settings.lxd_socket.parent.glob("networks/*/dnsmasq.pid"):
            record.unlink()
        apart.kill_lxd()
        platform.wait_for_node(NAME, "impaired")
        (condition,) = json.loads(cli.run("node", "show", NAME, "-o", "json"))["conditions"]
        assert condition["kind"] == "network"
        # What LXD has of rules, it has by chance: ours hold by themselves.
        apart.run("nft", "delete", "table", "inet", "lxd")
        assert reach(cli, "closed", gateway, SERVICE) == "closed"
        waiting = cli.json("allocation", "create", "--name", "later", *SMALL)
        assert waiting["reason"] == "waiting for capacity: no node is ready"
        # Mended: names are told again. LXD has the network as unavailable for up to a minute, or until it starts anew.
        wait_until(lambda: reach(cli, "closed", gateway, 53) == "open", "the name server is back")
        apart.kill_lxd()
        platform.wait_for_node(NAME, "ready")
        assert reach(cli, "closed", gateway, SERVICE) == "closed"
    platform.wait_until(lambda: platform.machine("later").status == "active", "the machine that waited is made")
    release(cli, "closed", "later")
    assert apart.leftovers() == []
