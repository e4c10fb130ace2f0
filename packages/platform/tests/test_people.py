"""Entries of people on the machines of an instance: which are new, which are gone."""

from datetime import UTC, datetime

import pytest

from gpuaas_contract.grants import GrantStatus
from gpuaas_platform.access.records import GrantView, WantedEntry
from gpuaas_platform.access.rules.logins import group_for
from gpuaas_platform.access.rules.people import compare_entries, words_of

NOW = datetime.now(UTC)


def made(user: str, machine: str, *, account_only: bool = False) -> GrantView:
    return GrantView(
        id=f"grt_{user}{machine}",
        allocation_id=machine,
        tenant_id="ten",
        project_id="prj",
        user_id=user,
        email="",
        login=f"u-{user}",
        uid=10_001,
        sudo=False,
        remote_forwarding=False,
        expires_at=None,
        status=GrantStatus.ACTIVE,
        reason="",
        granted_by="",
        instance_id="ins",
        account_only=account_only,
        leaving_until=None,
        ended_at=None,
        revision=1,
        created_at=NOW,
        updated_at=NOW,
        allocation_name=machine,
    )


def test_what_is_as_wanted_stays() -> None:
    found = compare_entries([WantedEntry("ann", "one", False)], [made("ann", "one")], {"one"})
    assert (list(found.gone), list(found.new)) == ([], [])


def test_who_came_and_who_left_differ() -> None:
    wanted = [WantedEntry("ann", "one", False), WantedEntry("ann", "two", True)]
    found = compare_entries(wanted, [made("bob", "one")], {"one", "two"})
    assert [row.user_id for row in found.gone] == ["bob"]
    assert list(found.new) == wanted


def test_a_machine_that_becomes_an_entrance_changes_the_entry() -> None:
    wanted = [WantedEntry("ann", "one", False)]
    found = compare_entries(wanted, [made("ann", "one", account_only=True)], {"one"})
    assert [row.id for row in found.gone] == ["grt_annone"]
    assert list(found.new) == wanted


def test_a_machine_whose_lock_is_not_held_is_left_for_the_next_round() -> None:
    assert list(compare_entries([WantedEntry("ann", "new", False)], [], {"one"}).new) == []


def test_the_message_names_a_few_of_many() -> None:
    assert words_of(["u-ann"], []) == "u-ann may use it"
    assert words_of([], ["u-bob"]) == "u-bob may not any more"
    assert words_of([f"u-{n}" for n in range(8)], ["u-x"]) == (
        "u-0, u-1, u-2, u-3, u-4 and 3 more may use it; u-x may not any more"
    )


@pytest.mark.parametrize(
    ("project", "taken", "name"),
    [
        ("research", False, "p-research"),
        ("research", True, "p-research-10007"),
        ("R & D / 2026", False, "p-r-d-2026"),
        ("!!!", False, "p-10007"),
        ("a" * 80, True, f"p-{'a' * 24}-10007"),
    ],
)
def test_the_group_of_a_project_has_a_name_that_a_machine_takes(project: str, taken: bool, name: str) -> None:
    assert group_for(project, 10_007, taken=taken) == name
    assert len(name) <= 32
