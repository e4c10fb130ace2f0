"""The life of a machine, through the command line, on real slices."""

import json
import random
import subprocess
from pathlib import Path

import pytest

from gpuaas_stack.stack import Stack
from tests.e2e.command_line import CommandLine
from tests.machines.conftest import kill, leftovers
from tests.support.chance import SEED
from tests.support.waiting import wait_until

SMALL = ["--cpus", "1", "--memory-mib", "512", "--disk-gib", "2"]
STEPS = ["identity", "network", "instance", "files", "start", "ssh"]
BOOT = "stat -c %Y /proc/1; cat /etc/ssh/ssh_host_ed25519_key.pub"


def steps(cli: CommandLine, machine: str) -> list[str]:
    return [entry["step"] for entry in cli.json("allocation", "timeline", machine)]


def usage(cli: CommandLine, machine: str) -> dict[str, dict[str, object]]:
    records = cli.json("allocation", "usage", machine)
    assert len({record["kind"] for record in records}) == len(records), "an interval was counted twice"
    return {record["kind"]: record for record in records}


def release(cli: CommandLine, machine: str) -> None:
    assert cli.json("allocation", "release", machine, "--yes", "--wait")["status"] == "released"


def test_life(cli: CommandLine, node: str) -> None:
    made = cli.json("allocation", "create", "--name", "one", *SMALL, "--gpus", "1", "--wait")
    entries = cli.json("allocation", "timeline", "one")
    assert [entry["step"] for entry in entries][-7:] == [*STEPS, "active"]
    assert all(entry["duration_seconds"] is not None and entry["correlation_id"] for entry in entries[:-1])
    cli.ssh("one", "echo kept > ~/data && sync")
    before = cli.ssh("one", BOOT).split("\n", 1)

    restarted = cli.json("allocation", "restart", "one", "--wait")
    assert (restarted["status"], restarted["activity"]) == ("active", None)
    after = cli.ssh("one", BOOT).split("\n", 1)
    assert after[0] != before[0], "it did not restart"
    assert after[1] == before[1], "it came back with another host key"
    assert cli.ssh("one", "cat", "~/data").strip() == "kept"

    words = ["--cpus", "2", "--memory-mib", "1024", "--disk-gib", "3", "--gpus", "3"]
    cli.json("allocation", "resize", "one", *words, "--wait")
    # LXD moves machines between CPUs by a loop of its own, some moments later.
    wait_until(lambda: cli.ssh("one", "nproc").strip() == "2", "the machine has its second CPU")
    seen = cli.ssh("one", "free -m | awk '/Mem/{print $2}'; ls /dev/nvidia* | wc -l; cat ~/data").split()
    assert seen == ["1024", "3", "kept"]
    assert cli.ssh("one", BOOT).split("\n", 1)[0] == after[0], "a resize is no restart"
    cli.json("allocation", "resize", "one", "--cpus", "1", "--gpus", "1", "--wait")
    assert cli.ssh("one", "ls /dev/nvidia* | wc -l").strip() == "1"
    wait_until(lambda: cli.ssh("one", "nproc").strip() == "1", "the machine has one CPU again")

    refused = cli.call("allocation", "resize", "one", "--memory-mib", "8000000")
    assert refused.returncode == 5
    assert "no room" in refused.stderr
    cli.json("allocation", "rename", "one", "first")
    assert cli.ssh("first", "hostname").strip() == "one"

    release(cli, "first")
    records = usage(cli, made["id"])
    charged, occupied = records["charged"], records["occupied"]
    assert [used["shape"]["gpus"] for used in charged["shapes"]] == [1, 3, 1]
    assert occupied["started_at"] < charged["started_at"] < charged["ended_at"] < occupied["ended_at"]
    assert leftovers() == []

    again = cli.json("allocation", "create", "--name", "one", *SMALL, "--wait")
    assert again["node_id"] == made["node_id"]
    assert cli.ssh("one", "ls ~/data || echo empty").strip() == "empty"
    release(cli, "one")
    assert leftovers() == []


def test_agent_killed_while_it_makes_a_machine(stack: Stack, cli: CommandLine, node: str) -> None:
    chance = random.Random(SEED)
    for step in chance.sample(STEPS, 2):
        print(f"seed {SEED}: killed at step {step}")
        name = f"killed-{step}"
        cli.run("allocation", "create", "--name", name, *SMALL, "--gpus", "1")
        wait_until(lambda name=name, step=step: step in steps(cli, name), f"step {step} has begun")
        kill(stack, "agent")
        wait_until(lambda name=name: cli.json("allocation", "show", name)["status"] == "active", f"{name} is active")
        assert cli.ssh(name, "ls /dev/nvidia* | wc -l").strip() == "1"
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
    stack: Stack, cli: CommandLine, node: str, service: str
) -> None:
    name = f"busy-{service}"
    cli.run("allocation", "create", "--name", name, *SMALL, "--wait")
    before = cli.ssh(name, BOOT).split()[0]
    cli.run("allocation", "restart", name)
    kill(stack, service)
    at_rest(cli, name)
    shown = cli.json("allocation", "show", name)
    assert (shown["status"], shown["reason"]) == ("active", "")
    booted = cli.ssh(name, BOOT).split()[0]
    assert booted != before
    cli.run("allocation", "resize", name, "--memory-mib", "768")
    kill(stack, service)
    at_rest(cli, name)
    assert cli.ssh(name, "free -m | awk '/Mem/{print $2}'").strip() == "768"
    assert cli.ssh(name, BOOT).split()[0] == booted, "it restarted more than once"
    release(cli, name)
    assert set(usage(cli, shown["id"])) == {"charged", "occupied"}


def at_rest(cli: CommandLine, name: str) -> None:
    def rests() -> bool:
        done = cli.call("allocation", "show", name, "-o", "json")
        return done.returncode == 0 and json.loads(done.stdout)["activity"] is None

    wait_until(rests, f"{name} is at rest")
    # Streams go through the agent, which may have been killed after it was done.
    wait_until(lambda: cli.call("ssh", name, "--", "true").returncode == 0, "the agent is back")


def test_api_killed_while_a_machine_is_made(stack: Stack, cli: CommandLine, node: str) -> None:
    cli.run("allocation", "create", "--name", "lost-api", *SMALL)
    wait_until(lambda: "instance" in steps(cli, "lost-api"), "the instance is being made")
    kill(stack, "api")

    def active() -> bool:
        done = cli.call("allocation", "show", "lost-api", "-o", "json")
        return done.returncode == 0 and json.loads(done.stdout)["status"] == "active"

    wait_until(active, "the machine is active")
    assert steps(cli, "lost-api").count("active") == 1
    release(cli, "lost-api")
    assert leftovers() == []


def test_full_storage_pool(stack: Stack, cli: CommandLine, node: str) -> None:
    """The pool is a loop file of these tests' own; the host's disk has room."""
    cli.run("allocation", "create", "--name", "early", *SMALL, "--wait")
    pool = Path("/var/lib/lxd/storage-pools") / stack.settings.storage_pool
    filler = pool / "filler"
    try:
        fill = subprocess.run(["dd", "if=/dev/zero", f"of={filler}", "bs=4M"], capture_output=True, text=True)
        assert "No space left" in fill.stderr
        failed = cli.call("allocation", "create", "--name", "late", *SMALL, "--wait")
        assert failed.returncode == 7
        shown = cli.json("allocation", "show", "late")
        assert shown["status"] == "failed"
        assert "the storage pool of the host is full" in shown["reason"]
        assert shown["charged_from"] is None
        assert "retry" in [action["action"] for action in shown["allowed_actions"]]
        assert f"instance {shown['id'].replace('_', '-')}" not in leftovers()
    finally:
        filler.unlink(missing_ok=True)
        subprocess.run(["sync", "-f", str(pool)], check=True)
    cli.run("allocation", "retry", "late", "--wait")
    assert cli.ssh("late", "echo here").strip() == "here"
    assert cli.ssh("early", "echo here").strip() == "here"
    for name in ("early", "late"):
        release(cli, name)
    assert leftovers() == []
