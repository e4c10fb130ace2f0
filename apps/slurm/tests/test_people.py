"""People in Slurm: given the associations that are there, expect the commands."""

from datetime import UTC, datetime
from types import SimpleNamespace

import pytest

from gpuaas_contract.grants import GrantStatus
from gpuaas_contract.people import Person, PersonEntry, PersonRole
from slurm_app.errors import RefusedError
from slurm_app.reconcilers.people import digest_of, divide, present_people
from slurm_app.slurm.people import AT_ONCE, Change, compare, mapping_script, parse_associations

ASSOCIATIONS = """Current Association Manager state

Association Records

ClusterName=c Account=root UserName= Partition= Priority=0 ID=1
    MaxJobs= MaxJobsAccrue= MaxSubmitJobs= MaxWallPJ=
ClusterName=c Account=lab UserName=gpuaas(10000) Partition= Priority=0 ID=3
    MaxJobs= MaxJobsAccrue= MaxSubmitJobs= MaxWallPJ=
ClusterName=c Account=lab UserName=u-ann(10001) Partition= Priority=0 ID=4
    GrpSubmitJobs=0(0) GrpWall=N(0.00)
    MaxJobs= MaxJobsAccrue= MaxSubmitJobs= MaxWallPJ=
ClusterName=c Account=lab UserName=u-bob(10002) Partition= Priority=0 ID=5
    MaxJobs= MaxJobsAccrue= MaxSubmitJobs=0 MaxWallPJ=
ClusterName=c Account=other UserName=u-cal(10003) Partition= Priority=0 ID=6
    MaxJobs= MaxJobsAccrue= MaxSubmitJobs=0 MaxWallPJ=
"""


def person(login: str, uid: int = 10_001, *, left: bool = False, entry: PersonEntry | None = None) -> Person:
    now = datetime.now(UTC)
    return Person(
        user_id=f"usr_{login}",
        email=f"{login}@example.com",
        login=login,
        uid=uid,
        project_id="prj",
        group="p-lab",
        gid=10_009,
        role=PersonRole.PROJECT_MEMBER,
        since=now,
        left_at=now if left else None,
        may_log_in=not left,
        entries=[] if entry is None else [entry],
    )


def test_only_people_of_the_account_are_read() -> None:
    assert parse_associations(ASSOCIATIONS, "lab") == {"u-ann": False, "u-bob": True}
    assert parse_associations("", "lab") == {}


def test_what_differs_is_changed_and_nothing_else() -> None:
    assert compare(["u-ann", "u-bob", "u-dan"], {"u-ann": False, "u-bob": True, "u-eve": False}) == Change(
        add=("u-dan",), unblock=("u-bob",), remove=("u-eve",)
    )
    assert not compare(["u-ann"], {"u-ann": False})


def test_somebody_without_a_user_for_the_moment_is_no_reason_to_ask() -> None:
    change = compare([], {"u-ann": False})
    assert not change.worth_asking(["u-ann"])
    assert change.worth_asking([])


def test_a_hundred_people_are_one_command() -> None:
    script = mapping_script(Change(tuple(f"u-{n}" for n in range(AT_ONCE)), (), ()), cluster_name="c", account="lab")
    assert script.count("manage add user") == 1
    assert "cluster=c account=lab defaultaccount=lab" in script


def test_who_lost_the_right_is_blocked_then_cancelled_then_removed() -> None:
    script = mapping_script(Change((), (), ("u-bob",)), cluster_name="c", account="lab")
    places = [script.index(words) for words in ("maxsubmitjobs=0", "scancel", "squeue", "manage remove user")]
    assert places == sorted(places)


@pytest.mark.parametrize("login", ["u-bob;reboot", "u-bob,root", "", "u bob", "-u"])
def test_a_name_that_is_none_goes_into_no_script(login: str) -> None:
    with pytest.raises(RefusedError):
        mapping_script(Change((login,), (), ()), cluster_name="c", account="lab")


def test_people_whom_the_machine_does_not_know_are_named_with_what_to_do() -> None:
    failed = PersonEntry(
        allocation_id="alc",
        allocation_name="one",
        log_in=True,
        status=GrantStatus.FAILED,
        reason="it has one of its own",
    )
    people = [person("u-ann"), person("u-bob", 10_002), person("u-cal", 10_003), person("u-dan", 10_004, entry=failed)]
    mapped, missing = divide(people, {"u-ann": 10_001, "u-bob": 7}, "alc")
    assert mapped == ["u-ann"]
    assert "with the number 7" in missing["u-bob"]
    assert "make u-cal with the number 10003 there" in missing["u-cal"]
    assert missing["u-dan"] == "it has one of its own"


def test_who_left_is_none_of_the_people() -> None:
    people = [person("u-ann"), person("u-bob", left=True)]
    assert [each.login for each in present_people(people)] == ["u-ann"]
    assert digest_of(people[:1]) != digest_of(people)
    assert digest_of([SimpleNamespace(login="b"), SimpleNamespace(login="a")]) == digest_of(  # type: ignore[list-item]
        [SimpleNamespace(login="a"), SimpleNamespace(login="b")]  # type: ignore[list-item]
    )
