"""Volumes on real slices, through the command line: shared, kept, moved on, deleted."""

import random
from typing import Any

import pytest

from gpuaas_stack.stack import Stack
from tests.e2e.administrator import Platform
from tests.e2e.command_line import CommandLine
from tests.machines.conftest import kill, leftovers
from tests.machines.slices import SMALL, make, release
from tests.support.chance import SEED
from tests.support.waiting import wait_until

OWNERS = "stat -c '%n %u:%g %a' /home/shared/*"


def volume(cli: CommandLine, name: str) -> dict[str, Any]:
    return dict(cli.json("volume", "show", name))


def machines(cli: CommandLine, name: str) -> dict[str, str]:
    return {item["allocation_name"]: item["status"] for item in volume(cli, name)["attachments"]}


def is_deleted(platform: Platform, volume_id: str) -> bool:
    return platform.ask(lambda client: client.volumes.get(volume_id)).status == "deleted"


def stored() -> list[str]:
    return [line for line in leftovers() if line.startswith("volume")]


def test_one_home_for_several_machines(cli: CommandLine, platform: Platform, node: str) -> None:
    home = cli.json("volume", "create", "--name", "home", "--size-gib", "1")
    assert (home["status"], stored()) == ("unplaced", [])
    make(cli, "left", shape=[*SMALL, "--volume", "home:/home/shared"])
    assert stored() == [f"volume {home['id'].replace('_', '-')}"]
    make(cli, "right")
    boot = cli.on("right", "stat -c %Y /proc/1")
    cli.json("volume", "attach", "home", "right", "/home/shared", "--wait")
    assert cli.on("right", "stat -c %Y /proc/1") == boot, "attaching is no restart"
    assert machines(cli, "home") == {"left": "attached", "right": "attached"}

    # What one machine writes the other one reads, with the same owners.
    cli.on("left", "sudo chmod 1777 /home/shared && echo hello > /home/shared/mine && sync")
    cli.on("left", "echo secret | sudo tee /home/shared/roots >/dev/null; sudo chmod 0600 /home/shared/roots")
    cli.on("left", "echo | sudo tee /home/shared/others >/dev/null; sudo chown 4242:4343 /home/shared/others")
    seen = cli.on("right", OWNERS).splitlines()
    assert seen == cli.on("left", OWNERS).splitlines()
    assert seen == [
        "/home/shared/mine 10000:10000 644",
        "/home/shared/others 4242:4343 644",
        "/home/shared/roots 0:0 600",
    ]
    assert cli.on("right", "cat /home/shared/mine; cat /home/shared/roots 2>&1 || true").split("\n", 1)[0] == "hello"
    assert cli.call("ssh", "right", "--", "cat", "/home/shared/roots").returncode != 0

    # It is full at its own size, while the disk of the machine has room.
    full = cli.call("ssh", "right", "--", "dd if=/dev/urandom of=/home/shared/big bs=1M count=1500")
    assert full.returncode != 0
    assert "quota exceeded" in full.stderr or "No space left" in full.stderr
    cli.on("right", "rm /home/shared/big && echo fits > ~/own && sync")

    cli.json("allocation", "restart", "left", "--wait")
    assert cli.on("left", "cat /home/shared/mine").strip() == "hello"
    cli.json("allocation", "resize", "right", "--memory-mib", "768", "--disk-gib", "3", "--wait")
    assert cli.on("right", "cat /home/shared/mine").strip() == "hello"

    refused = cli.call("volume", "delete", "home", "--yes")
    assert refused.returncode == 5
    assert "attached to left, right" in refused.stderr
    cli.json("volume", "detach", "home", "left", "--wait")
    assert cli.on("left", "ls -A /home/shared 2>/dev/null || true").strip() == ""
    assert cli.on("right", "cat /home/shared/mine").strip() == "hello"
    release(cli, "left", "right")
    assert (volume(cli, "home")["status"], machines(cli, "home")) == ("ready", {})
    assert leftovers() == stored() == [f"volume {home['id'].replace('_', '-')}"]

    cli.json("allocation", "create", "--name", "third", *SMALL, "--volume", "home:/srv/home", "--wait")
    assert cli.on("third", "cat /srv/home/mine; stat -c %u:%g /srv/home/others").split() == ["hello", "4242:4343"]
    released = cli.json("allocation", "release", "third", "--yes", "--wait", "--delete-volumes")
    assert released["status"] == "released"
    platform.wait_until(lambda: is_deleted(platform, home["id"]), "the volume is deleted")
    assert leftovers() == []


def test_detached_while_a_program_has_a_file_of_it_open(cli: CommandLine, node: str) -> None:
    cli.json("volume", "create", "--name", "busy", "--size-gib", "1")
    cli.json("allocation", "create", "--name", "holder", *SMALL, "--volume", "busy:/data", "--wait")
    cli.on("holder", "sudo systemd-run --quiet --unit holder sh -c 'exec 3>/data/open; sleep infinity'")
    wait_until(lambda: "open" in cli.on("holder", "sudo ls /data"), "the program has its file")
    # It is off for whoever comes; who has a file open keeps that file, and nothing breaks.
    cli.json("volume", "detach", "busy", "holder", "--wait")
    assert machines(cli, "busy") == {}
    seen = cli.on("holder", "grep -c ' /data ' /proc/mounts; systemctl is-active holder").split()
    assert seen == ["0", "active"]
    release(cli, "holder")
    assert machines(cli, "busy") == {}
    cli.json("volume", "delete", "busy", "--yes", "--wait")
    assert leftovers() == []


@pytest.mark.parametrize("work", ["attach", "detach", "delete"])
def test_agent_killed_in_the_middle(stack: Stack, cli: CommandLine, platform: Platform, node: str, work: str) -> None:
    chance = random.Random(f"{SEED}-{work}")
    name = f"killed-{work}"
    made = cli.json("volume", "create", "--name", name, "--size-gib", "1")
    make(cli, name)
    if work != "attach":
        cli.json("volume", "attach", name, name, "/data", "--wait")
    if work == "delete":
        cli.json("volume", "detach", name, name, "--wait")
    words = {"attach": [name, name, "/data"], "detach": [name, name], "delete": [name, "--yes"]}[work]
    begun = {"attach": ["attaching", "volume", "attach"], "detach": ["detaching", "detach"], "delete": ["deleting"]}
    step = chance.choice(begun[work])
    print(f"seed {SEED}: killed at step {step} of {work}")
    cli.run("volume", work, *words)
    if work != "delete":
        platform.wait_for_step(name, step)
    kill(stack, "agent")
    # Streams go through the agent, too.
    wait_until(lambda: cli.call("ssh", name, "--", "true").returncode == 0, "the agent is back")
    goal = {"attach": {name: "attached"}, "detach": {}, "delete": {}}[work]

    def attached() -> dict[str, str]:
        found = platform.ask(lambda client: client.volumes.get(made["id"])).attachments
        return {item.allocation_name: item.status for item in found}

    platform.wait_until(lambda: attached() == goal, f"the volume is as {work} leaves it")
    if work == "attach":
        cli.on(name, "mountpoint /data && echo once | sudo tee -a /data/file >/dev/null")
        assert cli.on(name, "sudo cat /data/file; grep -c ' /data ' /proc/mounts").split() == ["once", "1"]
    else:
        assert cli.on(name, "grep -c ' /data ' /proc/mounts || true").strip() == "0"
    release(cli, name)
    if work != "delete":
        assert stored() == [f"volume {made['id'].replace('_', '-')}"]
        cli.run("volume", "delete", name, "--yes")
    platform.wait_until(lambda: is_deleted(platform, made["id"]), "the volume is deleted")
    assert leftovers() == []


def test_a_volume_that_the_node_has_no_room_for(cli: CommandLine, node: str) -> None:
    make(cli, "tight")
    cli.json("volume", "create", "--name", "huge", "--size-gib", "60000")
    no_room = cli.call("volume", "attach", "huge", "tight", "/huge")
    assert no_room.returncode == 5
    assert "no room for the volume" in no_room.stderr
    assert volume(cli, "huge")["status"] == "unplaced"
    waits = cli.json("allocation", "create", "--name", "waits", *SMALL, "--volume", "huge:/huge")
    assert (waits["status"], "60002 needed" in waits["reason"]) == ("requested", True)
    assert cli.call("volume", "delete", "huge", "--yes").returncode == 5
    release(cli, "waits")
    assert cli.json("volume", "delete", "huge", "--yes", "--wait")["status"] == "deleted"
    release(cli, "tight")
    assert leftovers() == []
