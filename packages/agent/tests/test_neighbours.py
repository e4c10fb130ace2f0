"""Two slices of one kernel: what one does to the limits that they share leaves the other working."""

import asyncio
import base64
import contextlib
import json
import signal
import subprocess
from collections.abc import AsyncIterator, Callable

import pytest

from gpuaas_contract.ids import ALLOCATION, new_id

from .agent_test_host import AgentProcess, run
from .agent_test_platform import Platform
from .test_machines import create_spec, delete_spec, inside, name_of, ssh

pytestmark = [
    pytest.mark.machines,
    pytest.mark.xdist_group("agent-machines"),
    pytest.mark.filterwarnings("ignore:EdDSA is deprecated"),
]

PROCESSES = 256
CALLS = {"add_key": 248, "request_key": 249, "keyctl": 250}
"""On x86-64, to be called by number: the image has no program for it."""
FLOOD = (
    "my %failed; my ($type, $value) = (q(user), q(x) x 100);"
    "for my $number (1 .. 30000) { my $name = qq(flood-$number);"
    "my $key = syscall(248, $type, $name, $value, 100, -4); last if $key < 0 and ++$failed{$!+0} > 100 }"
    "print join(q(,), sort keys %failed)"
)
KEYCTL_32 = bytes.fromhex(
    # A program of the 32-bit kind that calls keyctl, and ends with the number of the error.
    "7f454c46010101000000000000000000020003000100000054800408340000000000000000000000340020000100000000000000010000"
    "0000000000008004080080040875000000750000000500000000100000b820010000bb00000000b9fdffffffba01000000cd80f7d889c3"
    "b801000000cd80"
)
BOMB = (
    "$| = 1; my $made = 0;"
    f"while ($made < {PROCESSES * 4}) {{ my $pid = fork; last unless defined $pid;"
    "if (!$pid) { sleep 120; exit } $made++ } print qq(made $made\\n); sleep 120"
)


@contextlib.asynccontextmanager
async def bomb(allocation_id: str) -> AsyncIterator[int]:
    """As many processes as the slice gets, for two minutes at most; yields how many it got."""
    words = ["lxc", "exec", name_of(allocation_id), "--", "timeout", "-s", "KILL", "120", "perl", "-e", BOMB]
    process = await asyncio.create_subprocess_exec(
        *words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        line = await asyncio.wait_for(process.stdout.readline(), 60)
        yield int(line.split()[1])
    finally:
        # With its slice it has ended already.
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()


def config_of(allocation_id: str) -> dict[str, str]:
    return dict(json.loads(run("lxc", "list", name_of(allocation_id), "-f", "json"))[0]["config"])


async def lose_limits_and_get_them_again(platform: Platform, allocation_id: str) -> None:
    """A slice of an earlier version has none."""
    keys = ("limits.processes", "security.syscalls.deny")
    before = [config_of(allocation_id)[key] for key in keys]
    for key in keys:
        run("lxc", "config", "unset", name_of(allocation_id), key)
    count = "cat /sys/fs/cgroup/pids/pids.max || cat /sys/fs/cgroup/pids.max"
    assert await inside(allocation_id, count) == "max"
    await platform.drop_links()
    await platform.until(lambda: set(keys) <= config_of(allocation_id).keys(), "the limits again")
    assert [config_of(allocation_id)[key] for key in keys] == before
    assert await inside(allocation_id, count) == str(PROCESSES), "at once"


async def test_a_fork_bomb_and_a_flood_of_keys_leave_the_neighbour_working(
    platform: Platform, agent: AgentProcess, leftovers: Callable[[], list[str]]
) -> None:
    await agent.end(signal.SIGTERM)
    agent.environ["GPUAAS_PROCESSES_PER_CPU"] = str(PROCESSES)
    agent.start()
    loud, quiet = new_id(ALLOCATION), new_id(ALLOCATION)
    specs = [create_spec(loud), create_spec(quiet, network=2)]
    results = await asyncio.gather(*(platform.run_task(spec) for spec in specs))
    assert all(result.ok for result in results), results
    for allocation_id in (loud, quiet):
        # Without keyrings nothing in it is amiss.
        assert await inside(allocation_id, "systemctl is-system-running --wait") == "running"
        assert await inside(allocation_id, "systemctl --failed --no-legend") == ""
        for name, number in CALLS.items():
            said = await inside(
                allocation_id, f"perl -e 'my @a = (q(user), q(x), q(y)); syscall({number}, @a); print $!'"
            )
            assert said == "Function not implemented", name
    await lose_limits_and_get_them_again(platform, quiet)
    program = base64.b64encode(KEYCTL_32).decode()
    await inside(loud, f"echo {program} | base64 -d > /root/keyctl-32; chmod 755 /root/keyctl-32")
    assert await inside(loud, "/root/keyctl-32; echo $?") == "38", "nor by the calls of 32-bit programs"
    assert await inside(loud, f"perl -e '{FLOOD}'") == "38", "no key was made"
    assert "flood" not in await inside(quiet, "cat /proc/keys")

    async with bomb(loud) as made:
        assert 0 < made < PROCESSES
        # What it did not get is there for the neighbour, and for the host.
        assert await inside(quiet, "for i in $(seq 100); do sleep 5 & done; jobs | wc -l; kill $(jobs -p)") == "100"
        done = await ssh(platform, quiet, "10.85.2.10", "true")
        assert done.returncode == 0, done.stderr
        # A slice that cannot start one more process can still be deleted.
        assert (await platform.run_task(delete_spec(loud))).ok
    assert (await platform.run_task(delete_spec(quiet))).ok
    assert leftovers() == []
