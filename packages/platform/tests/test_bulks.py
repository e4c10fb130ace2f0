"""Whether many operations together did what was asked."""

from dataclasses import replace

import pytest

from gpuaas_contract.bulk import AtLeast, BulkPolicy, BulkState, Policy
from gpuaas_contract.operations import Kind
from gpuaas_platform.core.records import from_document
from gpuaas_platform.operations.records import StoredPolicy, policy_document
from gpuaas_platform.operations.rules.bulks import needed, outlook, state_of, with_operation

from .platform_test_lives import instance, operation

ALL, SOME, TWO = Policy.ALL_OR_NOTHING, Policy.BEST_EFFORT, AtLeast(at_least=2)
POLICIES: dict[str, BulkPolicy] = {"all": ALL, "some": SOME, "two": TWO}


def states(*given: str) -> dict[str, str]:
    return {f"op_{number}": state for number, state in enumerate(given)}


@pytest.mark.parametrize(("policy", "count"), [(ALL, 3), (SOME, 1), (TWO, 2)])
def test_how_many_have_to_succeed(policy: BulkPolicy, count: int) -> None:
    assert needed(policy, 3) == count


@pytest.mark.parametrize(
    ("ended", "outcomes"),
    [
        (["succeeded"] * 3, {"all": True, "some": True, "two": True}),
        (["succeeded", "succeeded", "failed"], {"all": False, "some": True, "two": True}),
        (["succeeded", "failed", "cancelled"], {"all": False, "some": True, "two": False}),
        (["failed", "cancelled", "failed"], {"all": False, "some": False, "two": False}),
        (["succeeded", "succeeded"], {"all": False, "some": True, "two": True}),
        ([], {"all": False, "some": False, "two": False}),
    ],
)
def test_the_state_once_all_have_ended(ended: list[str], outcomes: dict[str, bool]) -> None:
    """Of three that were asked for: one that was never made has not succeeded."""
    met = {name: state_of(policy, states(*ended), 3) for name, policy in POLICIES.items()}
    assert met == {name: BulkState.SUCCEEDED if yes else BulkState.FAILED for name, yes in outcomes.items()}


@pytest.mark.parametrize("unfinished", ["pending", "running"])
def test_it_runs_until_the_last_has_ended(unfinished: str) -> None:
    assert state_of(SOME, states("succeeded", unfinished, "failed"), 3) == BulkState.RUNNING
    assert outlook(states("succeeded", unfinished, "failed", "cancelled")) == (1, 1)


@pytest.mark.parametrize(
    ("kind", "counts"), [(Kind.ADD, (3, 2)), (Kind.REMOVE, (2, 0)), (Kind.DRAIN, (2, 1)), (Kind.REPLACE, (2, 1))]
)
def test_the_next_one_is_judged_with_those_before_it(kind: Kind, counts: tuple[int, int]) -> None:
    before = instance(counts={"node": [2, 1], "head": [1, 1]})
    made = operation(kind, "mem_1")
    after = with_operation(before, made, "node")
    assert after == replace(before, counts={"node": list(counts), "head": [1, 1]}, open_operations=(made,))
    assert before.counts == {"node": [2, 1], "head": [1, 1]}, "the instance itself stays as it is"


def test_the_first_of_a_component() -> None:
    assert with_operation(instance(), operation(Kind.ADD, "mem_1"), "node").counts == {"node": [1, 1]}


@pytest.mark.parametrize("policy", POLICIES.values())
def test_a_policy_is_read_as_it_was_stored(policy: BulkPolicy) -> None:
    assert from_document(StoredPolicy, policy_document(policy)).policy == policy
