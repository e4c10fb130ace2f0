"""The life of a machine, through the command line, on real slices."""

import errno
import os
import random
import subprocess
from functools import partial
from pathlib import Path

import pytest

from gpuaas_stack.stack import Stack
from tests.e2e.administrator import Platform
from tests.e2e.command_line import CommandLine
from tests.machines.conftest import kill, leftovers
from tests.machines.slices import BOOT, SMALL, make, release, usage
from tests.support.chance import SEED
from tests.support.waiting import wait_until

STEPS = ["identity", "network", "instance", "files", "start", "ssh"]


def test_life(cli: CommandLine, node: str) -> None:
    made = cli.json("allocation", "create", "--name", "one", *SMALL, "--gpus", "1", "--wait")
    entries = cli.json("allocation", "timeline", "one")
    assert [entry["step"] for entry in entries][-7:] == [*STEPS, "active"]
    assert all(entry["duration_seconds"] is not None and entry["correlation_id"] for entry in entries[:-1])
    cli.on("one", "echo kept > ~/data && sync")
    before = cli.on("one", BOOT).split("\n", 1)

    restarted = cli.json("allocation", "restart", "one", "--wait")
    assert (restarted["status"], restarted["activity"]) == ("active", None)
    after = cli.on("one", BOOT).split("\n", 1)
    assert after[0] != before[0], "it did not restart"
    assert after[1] == before[1], "it came back with another host key"
    assert cli.on("one", "cat", "~/data").strip() == "kept"

    words = ["--cpus", "2", "--memory-mib", "1024", "--disk-gib", "3", "--gpus", "3"]
    cli.json("allocation", "resize", "one", *words, "--wait")
    # LXD moves machines between CPUs by a loop of its own, some moments later.
    wait_until(lambda: cli.on("one", "nproc").strip() == "2", "the machine has its second CPU")
    seen = cli.on("one", "free -m | awk '/Mem/{print $2}'; ls /dev/nvidia* | wc -l; cat ~/data").split()
    assert seen == ["1024", "3", "kept"]
    assert cli.on("one", BOOT).split("\n", 1)[0] == after[0], "a resize is no restart"
    cli.json("allocation", "resize", "one", "--cpus", "1", "--gpus", "1", "--wait")
    assert cli.on("one", "ls /dev/nvidia* | wc -l").strip() == "1"
    wait_until(lambda: cli.on("one", "nproc").strip() == "1", "the machine has one CPU again")

    refused = cli.call("allocation", "resize", "one", "--memory-mib", "8000000")
    assert refused.returncode == 5
    assert "no room" in refused.stderr
    cli.json("allocation", "rename", "one", "first")
    assert cli.on("first", "hostname").strip() == "one"

    release(cli, "first")
    records = usage(cli, made["id"])
    charged, occupied = records["charged"], records["occupied"]
    assert [used["shape"]["gpus"] for used in charged["shapes"]] == [1, 3, 1]
    assert occupied["started_at"] < charged["started_at"] < charged["ended_at"] < occupied["ended_at"]
    assert leftovers() == []

    again = cli.json("allocation", "create", "--name", "one", *SMALL, "--wait")
    assert again["node_id"] == made["node_id"]
    assert cli.on("one", "ls ~/data || echo empty").strip() == "empty"
    release(cli, "one")
    assert leftovers() == []


def test_agent_killed_while_it_makes_a_machine(stack: Stack, cli: CommandLine, platform: Platform, node: str) -> None:
    chance = random.Random(SEED)
    for step in chance.sample(STEPS, 2):
        print(f"seed {SEED}: killed at step {step}")
        name = f"killed-{step}"
        cli.run("allocation", "create", "--name", name, *SMALL, "--gpus", "1")
        platform.wait_for_step(name, step)
        kill(stack, "agent")
        platform.wait_until(partial(is_active, platform, name), f"{name} is active")
        assert cli.on(name, "ls /dev/nvidia* | wc -l").strip() == "1"
        made = {f"instance {machine['id'].replace('_', '-')}" for machine in cli.json("allocation", "list")}
        assert {line for line in leftovers() if line.startswith("instance")} == made
        release(cli, name)
        assert set(usage_kinds(cli)) == {"charged", "occupied"}
    assert leftovers() == []


def usage_kinds(cli: CommandLine) -> list[str]:
    """Of all machines that ever were: each has one record of each kind."""
    records = cli.json("usage", "list") + cli.json("usage", "list", "--occupied")
    keys = [(record["allocation_id"], record["kind"]) for record in records]
    assert len(keys) == len(set(keys))
    return [kind for _, kind in keys]


@pytest.mark.parametrize("service", ["agent", "api"])
def test_killed_in_the_middle_of_a_restart_and_a_resize(
    stack: Stack, cli: CommandLine, platform: Platform, node: str, service: str
) -> None:
    name = f"busy-{service}"
    make(cli, name)
    before = cli.on(name, BOOT).split()[0]
    cli.run("allocation", "restart", name)
    kill(stack, service)
    at_rest(cli, platform, name)
    shown = cli.json("allocation", "show", name)
    assert (shown["status"], shown["reason"]) == ("active", "")
    booted = cli.on(name, BOOT).split()[0]
    assert booted != before
    cli.run("allocation", "resize", name, "--memory-mib", "768")
    kill(stack, service)
    at_rest(cli, platform, name)
    assert cli.on(name, "free -m | awk '/Mem/{print $2}'").strip() == "768"
    assert cli.on(name, BOOT).split()[0] == booted, "it restarted more than once"
    release(cli, name)
    assert set(usage(cli, shown["id"])) == {"charged", "occupied"}


def is_active(platform: Platform, name: str) -> bool:
    return platform.machine(name).status == "active"


def at_rest(cli: CommandLine, platform: Platform, name: str) -> None:
    platform.wait_until(lambda: platform.machine(name).activity is None, f"{name} is at rest")
    # Streams go through the agent, which may have been killed after it was done.
    wait_until(lambda: cli.call("ssh", name, "--", "true").returncode == 0, "the agent is back")


def test_api_killed_while_a_machine_is_made(stack: Stack, cli: CommandLine, platform: Platform, node: str) -> None:
    cli.run("allocation", "create", "--name", "lost-api", *SMALL)
    platform.wait_for_step("lost-api", "instance")
    kill(stack, "api")
    platform.wait_until(partial(is_active, platform, "lost-api"), "the machine is active")
    assert platform.steps("lost-api").count("active") == 1
    release(cli, "lost-api")
    assert leftovers() == []


def fill(file: Path) -> None:
    """Takes all the room there is, without writing it; then not one block more can be written."""
    with file.open("wb") as opened:
        size, piece = 0, 1 << 30
        while piece >= 4096:
            try:
                os.posix_fallocate(opened.fileno(), size, piece)
                size += piece
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                piece //= 2
    more = subprocess.run(["dd", "if=/dev/zero", f"of={file}.more", "bs=4M"], capture_output=True, text=True)
    assert "No space left" in more.stderr


def test_full_storage_pool(stack: Stack, cli: CommandLine, node: str) -> None:
    """The pool is a loop file of these tests' own; the host's disk has room."""
    make(cli, "early")
    pool = Path("/var/lib/lxd/storage-pools") / stack.settings.storage_pool
    filler = pool / "filler"
    try:
        fill(filler)
        failed = cli.call("allocation", "create", "--name", "late", *SMALL, "--wait")
        assert failed.returncode == 7
        shown = cli.json("allocation", "show", "late")
        assert shown["status"] == "failed"
        assert "the storage pool of the host is full" in shown["reason"]
        assert shown["charged_from"] is None
        assert "retry" in [action["action"] for action in shown["allowed_actions"]]
        assert f"instance {shown['id'].replace('_', '-')}" not in leftovers()
    finally:
        for path in pool.glob("filler*"):
            path.unlink()
        subprocess.run(["sync", "-f", str(pool)], check=True)
    cli.run("allocation", "retry", "late", "--wait")
    assert cli.on("late", "echo here").strip() == "here"
    assert cli.on("early", "echo here").strip() == "here"
    release(cli, "early", "late")
    assert leftovers() == []
