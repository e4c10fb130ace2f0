"""Everything that stands in the way is found at once, and what is the app's own is no finding."""

import subprocess

import pytest

from gpuaas_sdk import CommandError, CommandResult
from gpuaas_sdk.testing import FakeMachine
from slurm_app.slurm import inspection
from slurm_app.slurm.roles import Role
from slurm_app.slurm.script import DAEMONS_ONLY, PEOPLE_ONLY

from .answers import FACTS, said

CLEAN = FACTS + "port=22\npackage=bash\n"
BOTH = frozenset({Role.CONTROLLER, Role.WORKER})


async def codes(text: str, roles: frozenset[Role] = BOTH) -> list[str]:
    seen = await inspection.inspect(FakeMachine(answers={"": said(text)}))
    return [finding.code for finding in inspection.findings("node-1", seen, roles, "/placement_intent/0")]


async def test_a_clean_machine_has_no_findings() -> None:
    assert await codes(CLEAN) == []


@pytest.mark.parametrize(
    ("more", "code"),
    [
        ("package=slurmctld\n", "other_scheduler"),
        ("package=mariadb-server\n", "other_scheduler"),
        ("path=/etc/slurm/mine.conf\n", "foreign_files"),
        ("unreadable=/etc/munge\n", "foreign_files"),
        ("port=6818\n", "port_taken"),
    ],
)
async def test_what_others_have_there_is_found(more: str, code: str) -> None:
    assert await codes(CLEAN + more) == [code]
    assert await codes(CLEAN + more + "record=yes\n") == []


@pytest.mark.parametrize(
    ("old", "new", "code"),
    [
        ("os_version=12", "os_version=13", "bundle_does_not_fit"),
        ("architecture=x86_64", "architecture=aarch64", "bundle_does_not_fit"),
        ("memory_mib=2048", "memory_mib=512", "too_little_memory"),
        ("disk_free_mib=4000", "disk_free_mib=100", "too_little_disk"),
        ("init=systemd", "init=bash", "no_systemd"),
        ("hostname=node-1", "hostname=other", "hostname_mismatch"),
    ],
)
async def test_what_does_not_suit_is_found(old: str, new: str, code: str) -> None:
    assert await codes(CLEAN.replace(old, new)) == [code]


async def test_a_person_named_like_a_daemon_is_found() -> None:
    """Also on a machine that the app is on already: the next install would fail."""
    assert await codes(CLEAN + "person=munge\n") == ["name_of_daemon"]
    assert await codes(CLEAN + "person=munge\nrecord=yes\n") == ["name_of_daemon"]


@pytest.mark.parametrize(
    ("entry", "person"),
    [
        ("munge:x:10005:10005::/home/munge:/bin/bash", True),
        ("munge:x:1000:1000::/home/munge:/bin/bash", True),
        ("munge:x:103:103::/nonexistent:/usr/sbin/nologin", False),
        ("slurm:x:64030:64030::/nonexistent:/usr/sbin/nologin", False),
    ],
)
def test_numbers_tell_people_from_daemons(entry: str, person: bool) -> None:
    script = f"{PEOPLE_ONLY}\n{DAEMONS_ONLY}\necho {entry!r} | people_only; echo -; echo {entry!r} | daemons_only"
    printed = subprocess.run(["bash", "-euc", script], capture_output=True, text=True, check=True).stdout
    people, daemons = printed.split("-\n")
    assert (bool(people), bool(daemons)) == (person, not person)


async def test_all_of_it_at_once() -> None:
    text = CLEAN.replace("os_version=12", "os_version=11") + "package=munge\nport=6817\npath=/etc/slurm\n"
    assert await codes(text) == ["bundle_does_not_fit", "other_scheduler", "foreign_files", "port_taken"]


def test_clocks_that_differ_are_named_with_the_difference() -> None:
    alike: list[dict[str, float]] = [{}, {"a": 100}, {"a": 100, "b": 130}]
    assert [inspection.clock_findings(clocks) for clocks in alike] == [[], [], []]
    (two,) = inspection.clock_findings({"a": 100, "b": 3700})
    assert two.code == "clock_skew"
    assert two.message == "the clocks differ by 3600 s, and 30 s are allowed: b is 3600 s ahead of a"
    (behind,) = inspection.clock_findings({"a": 5_000, "b": 1_400, "c": 5_001, "d": 5_002})
    assert behind.message.endswith(": b is 3600 s behind a")
    (apart,) = inspection.clock_findings({"a": 100, "b": 120, "c": 140})
    assert apart.message.endswith(": a is 20 s behind b; c is 20 s ahead of b")


async def test_a_look_that_failed_is_not_a_clean_machine() -> None:
    with pytest.raises(CommandError):
        await inspection.inspect(FakeMachine(answers={"": CommandResult(1, "", "no")}))


def test_the_script_is_valid_bash() -> None:
    checked = subprocess.run(["bash", "-n"], input=inspection._SCRIPT, text=True, capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr
