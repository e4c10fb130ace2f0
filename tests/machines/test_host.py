"""A second node that hands itself over as a whole, through the command line."""

import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gpuaas_sdk.errors import ApiError
from gpuaas_stack.stack import Stack
from tests.e2e.administrator import Platform
from tests.e2e.command_line import CommandLine
from tests.machines.controller import app_on, controller_on
from tests.machines.people import SshFiles, make_person
from tests.machines.slices import release, usage
from tests.machines.stand_in import StandIn, build_agent, stand_in
from tests.machines.test_leases import check_observer
from tests.machines.tunnels import STOP_SERVICE, made_ready, start_service
from tests.support.artifacts import promoted
from tests.support.chance import SEED
from tests.support.tcp_services import converse
from tests.support.tunnels import ended_with
from tests.support.waiting import wait_until

LEAST = ["--cpus", "1", "--memory-mib", "256", "--disk-gib", "2"]
STEPS = ["check", "identity", "user", "files", "sshd", "ssh"]
OWN_KEYS = "ssh-keyscan -T 5 127.0.0.1 2>/dev/null | sort"
BOOT = "cat /proc/sys/kernel/random/boot_id"


@pytest.fixture(scope="module")
def whole_host(stack: Stack, node: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandIn]:
    runtime = tmp_path_factory.mktemp("agent")
    build_agent(runtime)
    with stand_in(stack, "two") as host:
        host.install_agent(stack, runtime)
        try:
            yield host
        finally:
            print(host.log())


@pytest.fixture
def second(cli: CommandLine, platform: Platform, whole_host: StandIn) -> StandIn:
    """Enrolled, also after a test that has retired it."""
    if platform.node_status("host-two") in (None, "retired"):
        whole_host.enrol(cli.json("node", "join-token", "host-two")["token"])
    platform.wait_for_node("host-two", "ready")
    return whole_host


def shown_node(cli: CommandLine, name: str = "host-two") -> dict[str, Any]:
    (found,) = [node for node in cli.json("node", "list") if node["name"] == name and node["status"] != "retired"]
    return dict(found)


def test_life_of_a_whole_host(
    stack: Stack, cli: CommandLine, platform: Platform, node: str, second: StandIn, tmp_path: Path
) -> None:
    two = shown_node(cli)
    assert two["inventory"]["offers"] == ["host"]
    capacity = two["inventory"]["capacity"]
    assert (capacity["cpus"], capacity["memory_mib"], capacity["gpus"]) == (1, 640, 1)
    before, boot, own_keys = second.snapshot(), second.sh(BOOT), second.sh(OWN_KEYS)

    made = cli.json("allocation", "create", "--name", "whole", "--host", *LEAST, "--wait")
    assert made["node_id"] == two["id"]
    assert {name: made["shape"][name] for name in capacity} == capacity, "it has all of the node"
    assert platform.steps("whole")[-7:] == [*STEPS, "active"]
    assert shown_node(cli)["allocated"] == capacity
    seen = cli.ssh("whole", "id -un; id -u; sudo id -un; ls /dev/nvidia*").split()
    assert seen == ["gpuaas", "10000", "root", "/dev/nvidia0"]

    assert second.sh(OWN_KEYS) == own_keys, "who knows the host by its own keys knows it still"

    slice_ = cli.json("allocation", "create", "--name", "part", *LEAST, "--wait")
    assert slice_["node_id"] == shown_node(cli, "host-one")["id"], "slices go where slices are offered"
    cli.run("allocation", "create", "--name", "late", "--host", *LEAST)
    waiting = cli.json("allocation", "show", "late")
    assert waiting["status"] == "requested"
    assert "host-two: is taken as a whole" in waiting["reason"]
    assert "host-one: offers slices, not a whole host" in waiting["reason"]
    release(cli, "late", "part")

    refused = cli.call("allocation", "resize", "whole", "--memory-mib", "300")
    assert "whole is a whole host: resize is not possible" in refused.stderr, refused
    restarted = cli.json("allocation", "restart", "whole", "--wait")
    assert (restarted["status"], restarted["activity"], restarted["reason"]) == ("active", None, "")
    assert second.sh(BOOT) != boot, "it did not reboot"
    assert cli.ssh("whole", BOOT) == second.sh(BOOT)

    with_people(stack, cli, tmp_path)
    cli.ssh("whole", "nohup sleep 1000 >/dev/null 2>&1 & touch /tmp/mine ~/mine; echo '* * * * * true' > ~/c")
    release(cli, "whole")
    assert second.snapshot() == before, "the host is not as it was"
    records = usage(cli, made["id"])
    assert {name: records["charged"]["shapes"][0]["shape"][name] for name in capacity} == capacity
    assert records["charged"]["ended_at"] <= records["occupied"]["ended_at"]


def with_people(stack: Stack, cli: CommandLine, homes: Path) -> None:
    """They leave files and processes behind; none of it is there after the release. The authority changes, too."""
    ada, bob = make_person(stack, cli, homes, "ada"), make_person(stack, cli, homes, "bob")
    grants = [cli.json("grant", "create", "whole", person.email, "--sudo", "--wait") for person in (ada, bob)]
    leave = "touch /tmp/mine-$(id -u) ~/mine; setsid -f sleep 1001 </dev/null >/dev/null 2>&1; id -un; sudo -n id -un"
    for person, grant in zip((ada, bob), grants, strict=True):
        assert person.cli.ssh("whole", leave).split() == [grant["login"], "root"]
    cli.run("grant", "revoke", grants[1]["id"], "--yes", "--wait")
    assert bob.cli.call("ssh", "whole", "--", "true").returncode == 4
    assert grants[1]["login"] not in cli.ssh("whole", "ps -e -o user:32=; ls /etc/ssh/gpuaas/principals").split()
    cli.run("ssh-authority", "rotate", "--wait")
    cli.run("ssh-authority", "retire", "--yes", "--wait")
    assert ada.cli.ssh("whole", "id -un").strip() == grants[0]["login"]
    for person in (ada, bob):
        person.close()


def test_agent_killed_while_it_hands_the_host_over(cli: CommandLine, platform: Platform, second: StandIn) -> None:
    before = second.snapshot()
    for step in random.Random(SEED).sample(STEPS, 2):
        print(f"seed {SEED}: killed at step {step}")
        name = f"killed-{step}"
        cli.run("allocation", "create", "--name", name, "--host", *LEAST)
        platform.wait_for_step(name, step)
        second.kill_agent()
        platform.wait_until(partial(is_active, platform, name), f"{name} is active")
        # Where it was done before the kill, the node may only be noticed to be away now.
        wait_until(partial(answers, cli, name), f"{name} answers")
        cli.run("allocation", "release", name, "--yes")
        second.kill_agent()
        platform.wait_for_step(name, "released")
        assert second.snapshot() == before


def is_active(platform: Platform, name: str) -> bool:
    return platform.machine(name).status == "active"


def answers(cli: CommandLine, name: str) -> bool:
    return cli.call("ssh", name, "--", "sudo", "id").returncode == 0


def test_released_while_it_is_handed_over(cli: CommandLine, platform: Platform, second: StandIn) -> None:
    before = second.snapshot()
    cli.run("allocation", "create", "--name", "short", "--host", *LEAST)
    platform.wait_for_step("short", "user")
    release(cli, "short")
    assert second.snapshot() == before


async def test_a_controller_works_on_it_and_gets_artifacts(stack: Stack, cli: CommandLine, second: StandIn) -> None:
    before = second.snapshot()
    made = cli.json("allocation", "create", "--name", "worked", "--host", *LEAST, "--wait")
    async with controller_on(stack, made["project_id"], made["id"]) as controller:
        artifact = await promoted(controller.admin, b"all that it takes", app_slug=controller.app_slug)
        machine = controller.machines.machine(made["id"])
        path = await machine.deliver(artifact.digest)
        assert await machine.deliver(artifact.digest) == path
        assert path == f"/opt/gpuaas/artifacts/{artifact.content_digest.replace(':', '-')}"
        seen = await machine.read(f"id -un; stat -c %a {path}; cat {path}")
        assert seen.stdout == "root\n444\nall that it takes"
    release(cli, "worked")
    assert second.snapshot() == before
    assert "artifacts" not in second.sh("ls /var/lib/gpuaas-agent"), "the next one would be given what this one had"


async def test_a_port_of_its_address_is_reached_and_none_of_its_loopback(
    stack: Stack, cli: CommandLine, second: StandIn
) -> None:
    before = second.snapshot()
    # The stand-in has no network, and a host without a way out is known by its loopback.
    with address_of_its_own(cli, second):
        made = cli.json("allocation", "create", "--name", "ported", "--host", *LEAST, "--wait")
        await reach_port(stack, cli, second, made)
        release(cli, "ported")
    assert second.snapshot() == before


@contextmanager
def address_of_its_own(cli: CommandLine, second: StandIn) -> Iterator[None]:
    def is_known_by(address: str) -> bool:
        found = shown_node(cli)
        return (found["status"], found["inventory"]["address"]) == ("ready", address)

    second.sh(
        "ip link add way-out type veth peer name far-end; ip link set way-out up; ip link set far-end up;"
        " ip address add 192.0.2.50/24 dev way-out; ip route add default dev way-out"
    )
    second.kill_agent()
    wait_until(partial(is_known_by, "192.0.2.50"), "the host is known by its address")
    try:
        yield
    finally:
        second.sh("ip link delete way-out")
        second.kill_agent()
    wait_until(partial(is_known_by, "127.0.0.1"), "the host is known as before")


async def reach_port(stack: Stack, cli: CommandLine, second: StandIn, made: dict[str, Any]) -> None:
    async with app_on(stack, made["project_id"], made["id"]) as app:
        member = await made_ready(app)
        second.sh(start_service(7000, "127.0.0.1"))
        with pytest.raises(ApiError, match="nothing listens on port 7000 of the machine's address"):
            await app.admin.open_port(member.id, "voice")
        second.sh(STOP_SERVICE)
        second.sh(start_service(7000))
        with ended_with(
            cli.start("tunnel", app.instance.name, "voice", "--project", "research", "-o", "json")
        ) as tunnel:
            await tunnel.ready()
            await converse(*await tunnel.connect(), 10)
        second.sh(STOP_SERVICE)


async def test_an_observer_can_look_and_nothing_else(
    stack: Stack, cli: CommandLine, second: StandIn, tmp_path: Path
) -> None:
    before = second.snapshot()
    made = cli.json("allocation", "create", "--name", "watched", "--host", *LEAST, "--wait")
    async with app_on(stack, made["project_id"], made["id"]) as app:
        await check_observer(app, made["id"], SshFiles(tmp_path))
    release(cli, "watched")
    assert second.snapshot() == before


def test_what_cannot_be_removed_is_named(cli: CommandLine, second: StandIn) -> None:
    before = second.snapshot()
    made = cli.json("allocation", "create", "--name", "stuck", "--host", *LEAST, "--wait")
    second.sh("mkdir /home/gpuaas/held && mount -t tmpfs held /home/gpuaas/held")
    cli.call("allocation", "release", "stuck", "--yes", "--wait")
    shown = cli.json("allocation", "show", "stuck")
    assert shown["status"] == "release_failed"
    assert "/home/gpuaas" in shown["reason"]
    assert shown["charged_until"] is not None
    assert (
        "ended_at" not in usage(cli, made["id"])["occupied"] or usage(cli, made["id"])["occupied"]["ended_at"] is None
    )
    second.sh("umount /home/gpuaas/held")
    cli.run("allocation", "retry", "stuck", "--wait")
    assert second.snapshot() == before


def test_a_host_with_such_a_user_is_left_alone(cli: CommandLine, second: StandIn) -> None:
    second.sh("useradd --create-home gpuaas")
    before = second.snapshot()
    failed = cli.call("allocation", "create", "--name", "mine", "--host", *LEAST, "--wait")
    assert failed.returncode == 7
    shown = cli.json("allocation", "show", "mine")
    assert shown["status"] == "failed"
    assert "it has /home/gpuaas" in shown["reason"] or "the user gpuaas" in shown["reason"]
    assert second.snapshot() == before
    second.sh("userdel --remove gpuaas 2>/dev/null")
    cli.run("allocation", "retry", "mine", "--wait")
    release(cli, "mine")


def test_drained_and_retired_it_is_worth_nothing(cli: CommandLine, second: StandIn) -> None:
    made = cli.json("allocation", "create", "--name", "last", "--host", *LEAST, "--wait")
    assert cli.json("node", "drain", "host-two")["status"] == "draining"
    assert cli.call("node", "retire", "host-two").returncode == 5, "somebody has it"
    release(cli, made["id"])
    assert cli.json("node", "retire", "host-two")["status"] == "retired"
    wait_until(lambda: "refuses this node" in second.log(), "the agent is told that its identity is worth nothing")
