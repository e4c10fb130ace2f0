"""Actions by state, as tables: the code of the refusal, or that there is none."""

from typing import Any

import pytest

from gpuaas_contract.instances import DesiredState, MemberStatus
from gpuaas_contract.operations import Kind, OperationState
from gpuaas_contract.problems import Code
from gpuaas_platform.instances.rules import actions
from gpuaas_platform.instances.rules.actions import Denial, InstanceFacts

from .platform_test_lives import (
    HEAD,
    INSTANCE_KINDS,
    LONG_AGO,
    MEMBER_KINDS,
    NODE,
    ended,
    instance_facts,
    member,
    operation,
)

NOT_NOW, GONE, BUSY = Code.ACTION_NOT_ALLOWED, Code.INVALID_STATE, Code.OPERATION_RUNNING
NO_SUCH, LIMIT = Code.INVALID_REQUEST, Code.COMPONENT_LIMIT
S = MemberStatus
FAILED = OperationState.FAILED


def code(denial: Denial | None) -> Code | None:
    return None if denial is None else denial.code


STATES: dict[str, InstanceFacts] = {
    "running": instance_facts(),
    "stopped": instance_facts(desired_state=DesiredState.STOPPED),
    "stopped as asked": instance_facts(
        desired_state=DesiredState.STOPPED, last_operation=ended(Kind.STOP, OperationState.SUCCEEDED)
    ),
    "stopped, then a failure": instance_facts(
        desired_state=DesiredState.STOPPED, last_operation=ended("survey", FAILED)
    ),
    "nothing asked": instance_facts(last_operation=None),
    "stop failed": instance_facts(desired_state=DesiredState.STOPPED, last_operation=ended(Kind.STOP, FAILED)),
    "start failed": instance_facts(last_operation=ended(Kind.START, FAILED)),
    "never deployed": instance_facts(deployed=False),
    "one under way": instance_facts(operation(Kind.RESTART)),
    "a member busy": instance_facts(operation(Kind.DRAIN, "mem_1")),
    "going": instance_facts(desired_state=DesiredState.DECOMMISSIONED),
    "going now": instance_facts(operation(Kind.DECOMMISSION), desired_state=DesiredState.DECOMMISSIONED),
    "gone": instance_facts(desired_state=DesiredState.DECOMMISSIONED, ended_at=LONG_AGO),
}
OF_INSTANCES: dict[str, tuple[Code | None, ...]] = {
    #                  start    stop     restart  upgrade  configure decommission survey
    "running": (NOT_NOW, None, None, None, None, None, None),
    "stopped": (None, NOT_NOW, NOT_NOW, NOT_NOW, NOT_NOW, None, NOT_NOW),
    "stopped as asked": (None, NOT_NOW, NOT_NOW, NOT_NOW, NOT_NOW, None, NOT_NOW),
    "stopped, then a failure": (None, NOT_NOW, NOT_NOW, NOT_NOW, NOT_NOW, None, NOT_NOW),
    "nothing asked": (NOT_NOW, None, None, None, None, None, None),
    "stop failed": (None, None, NOT_NOW, NOT_NOW, NOT_NOW, None, NOT_NOW),
    "start failed": (None, None, None, None, None, None, None),
    "never deployed": (NOT_NOW, NOT_NOW, NOT_NOW, NOT_NOW, NOT_NOW, None, NOT_NOW),
    "one under way": (BUSY, BUSY, BUSY, BUSY, BUSY, None, BUSY),
    "a member busy": (BUSY, BUSY, BUSY, BUSY, BUSY, None, BUSY),
    "going": (GONE, GONE, GONE, GONE, GONE, None, GONE),
    "going now": (BUSY, BUSY, BUSY, BUSY, BUSY, BUSY, BUSY),
    "gone": (GONE, GONE, GONE, GONE, GONE, GONE, GONE),
}


@pytest.mark.parametrize("state", STATES)
def test_operations_on_an_instance(state: str) -> None:
    found = tuple(code(actions.instance_denial(STATES[state], kind)) for kind in INSTANCE_KINDS)
    assert dict(zip(INSTANCE_KINDS, found, strict=True)) == dict(zip(INSTANCE_KINDS, OF_INSTANCES[state], strict=True))


@pytest.mark.parametrize("state", STATES)
def test_what_may_wait_for_its_turn(state: str) -> None:
    """Only an end that is certain refuses what waits in a queue; the rest is judged on its turn."""
    found = {kind: code(actions.instance_denial(STATES[state], kind, queued=True)) for kind in INSTANCE_KINDS}
    ends = {"going", "going now", "gone"}
    expected = {kind: OF_INSTANCES[state][at] if state in ends else None for at, kind in enumerate(INSTANCE_KINDS)}
    assert found == expected


OF_MEMBERS: dict[MemberStatus, tuple[Code | None, ...]] = {
    #               drain    resume   remove replace  recover  polish
    S.PENDING: (NOT_NOW, NOT_NOW, None, None, NOT_NOW, NOT_NOW),
    S.CONFIGURING: (NOT_NOW, NOT_NOW, None, None, None, None),
    S.READY: (None, NOT_NOW, None, None, None, None),
    S.DRAINING: (None, None, None, None, None, None),
    S.DRAINED: (NOT_NOW, None, None, None, None, None),
    S.STOPPED: (NOT_NOW, None, None, None, None, None),
    S.REMOVING: (NOT_NOW, NOT_NOW, None, NOT_NOW, NOT_NOW, NOT_NOW),
    S.REMOVED: (GONE, GONE, GONE, GONE, GONE, GONE),
    S.FAILED: (None, NOT_NOW, None, None, None, None),
}


@pytest.mark.parametrize("status", S)
def test_operations_on_a_member(status: MemberStatus) -> None:
    found = {kind: code(actions.member_denial(instance_facts(), member(status), kind)) for kind in MEMBER_KINDS}
    assert found == dict(zip(MEMBER_KINDS, OF_MEMBERS[status], strict=True))


@pytest.mark.parametrize(
    ("state", "expected"),
    [("stopped", NOT_NOW), ("going", GONE), ("one under way", BUSY), ("a member busy", BUSY), ("going now", BUSY)],
)
def test_no_member_is_worked_on_while_the_instance_is_elsewhere(state: str, expected: Code) -> None:
    found = {kind: code(actions.member_denial(STATES[state], member(), kind)) for kind in MEMBER_KINDS}
    preempts = {Kind.REMOVE: None} if state == "a member busy" else {}
    assert found == dict.fromkeys(MEMBER_KINDS, expected) | preempts


@pytest.mark.parametrize(
    ("state", "expected"), [("stopped", None), ("one under way", None), ("a member busy", None), ("going", GONE)]
)
def test_what_may_wait_for_its_turn_on_a_member(state: str, expected: Code | None) -> None:
    kinds = set(MEMBER_KINDS) - {Kind.REMOVE}
    found = {kind: code(actions.member_denial(STATES[state], member(S.STOPPED), kind, queued=True)) for kind in kinds}
    assert found == dict.fromkeys(kinds, expected)


def test_an_operation_on_one_member_leaves_the_others_free() -> None:
    other = instance_facts(operation(Kind.DRAIN, "mem_2"))
    assert actions.member_denial(other, member(), Kind.DRAIN) is None
    taking_over = instance_facts(operation(Kind.REPLACE, "mem_2", replacement_member_id="mem_1"))
    assert code(actions.member_denial(taking_over, member(), Kind.DRAIN)) == BUSY, "it is about to take over"


@pytest.mark.parametrize("kind", [Kind.DEPLOY, Kind.PREFLIGHT, Kind.ADD, Kind.RESIZE])
def test_what_only_the_platform_asks_for(kind: Kind) -> None:
    asked = actions.member_denial if kind in {Kind.ADD, Kind.RESIZE} else None
    denial = asked(instance_facts(), member(), kind) if asked else actions.instance_denial(instance_facts(), kind)
    assert denial is not None
    assert (denial.code, denial.detail) == (NOT_NOW, actions.UNASKED[kind])


def test_what_the_manifest_does_not_declare() -> None:
    for denial in (
        actions.instance_denial(instance_facts(), "dance"),
        actions.member_denial(instance_facts(), member(), "dance"),
    ):
        assert denial is not None
        assert (denial.code, "demo 1.0.0 has no operation 'dance'" in denial.detail) == (NO_SUCH, True)
    drained = actions.instance_denial(instance_facts(), Kind.DRAIN)
    assert drained is not None
    assert (drained.code, "not about the whole instance" in drained.detail) == (NO_SUCH, True)
    assert code(actions.member_denial(instance_facts(), member(), Kind.STOP)) == NO_SUCH, "about the whole instance"
    assert code(actions.member_denial(instance_facts(), member(component_key=HEAD), "polish")) == NO_SUCH, (
        "of another component"
    )
    assert code(actions.addition_denial(instance_facts(), HEAD)) == NO_SUCH


def test_a_mode_allows_what_it_lists_and_a_decommission() -> None:
    fixed = instance_facts(mode="fixed")
    allowed = {kind for kind in INSTANCE_KINDS if actions.instance_denial(fixed, kind) is None}
    allowed |= {kind for kind in MEMBER_KINDS if actions.member_denial(fixed, member(), kind) is None}
    assert allowed == {Kind.RESTART, Kind.DECOMMISSION, Kind.DRAIN}
    assert code(actions.addition_denial(fixed, NODE)) == NOT_NOW


@pytest.mark.parametrize(
    ("facts", "count", "expected"),
    [
        ({}, 1, None),
        ({}, 2, LIMIT),
        ({"counts": {NODE: [3, 1]}}, 1, LIMIT),
        ({"counts": None}, 3, None),
        ({"mode": "small"}, 1, LIMIT),
        ({"mode": "small", "counts": {NODE: [1, 1]}}, 1, None),
        ({"desired_state": DesiredState.STOPPED}, 1, NOT_NOW),
        ({"desired_state": DesiredState.DECOMMISSIONED}, 1, GONE),
        ({"ended_at": LONG_AGO}, 1, GONE),
        ({"open_operations": [operation(Kind.UPGRADE)]}, 1, BUSY),
        ({"open_operations": [operation(Kind.DRAIN, "mem_1")]}, 1, None),
        ({"deployed": False}, 1, None),
    ],
)
def test_additions(facts: dict[str, Any], count: int, expected: Code | None) -> None:
    assert code(actions.addition_denial(instance_facts(**facts), NODE, count)) == expected
    if count == 1:
        assert code(actions.addition_denial(instance_facts(**facts), NODE)) == expected


@pytest.mark.parametrize(
    ("facts", "of", "queued", "expected"),
    [
        ({}, {}, False, None),
        ({"counts": {NODE: [2, 1]}}, {}, False, LIMIT),
        ({"counts": None}, {}, False, LIMIT),
        ({"mode": "small"}, {}, False, LIMIT),
        ({}, {"component_key": HEAD}, False, NOT_NOW),
        ({"counts": {HEAD: [2, 2]}}, {"component_key": HEAD, "replaces_member_id": "mem_0"}, False, None),
        ({"open_operations": [operation(Kind.REPLACE, "mem_1")]}, {}, False, None),
        ({"open_operations": [operation(Kind.REMOVE, "mem_1")]}, {}, False, BUSY),
        ({"open_operations": [operation(Kind.REMOVE, "mem_1")]}, {}, True, BUSY),
        ({"open_operations": [operation(Kind.REMOVE, "mem_2")]}, {}, False, None),
        ({"open_operations": [operation(Kind.UPGRADE)]}, {}, False, BUSY),
        ({"open_operations": [operation(Kind.UPGRADE)]}, {}, True, None),
        ({"open_operations": [operation(Kind.DRAIN, "mem_1"), operation(Kind.UPGRADE)]}, {}, True, None),
        ({"open_operations": [operation(Kind.REMOVE, "mem_2"), operation(Kind.UPGRADE)]}, {}, True, None),
        ({"open_operations": [operation(Kind.UPGRADE)], "counts": {NODE: [1, 1]}}, {}, True, LIMIT),
    ],
)
def test_removals(facts: dict[str, Any], of: dict[str, Any], queued: bool, expected: Code | None) -> None:
    assert code(actions.member_denial(instance_facts(**facts), member(**of), Kind.REMOVE, queued=queued)) == expected


def test_a_replacement_that_was_called_off_is_not_asked_for_once_more() -> None:
    called_off = instance_facts(counts={NODE: [4, 4]})
    assert code(actions.member_denial(called_off, member(), Kind.REPLACE, queued=True)) == LIMIT
    assert actions.member_denial(called_off, member(), Kind.DRAIN) is None
    full = instance_facts(counts={NODE: [3, 3]})
    assert actions.member_denial(full, member(), Kind.REPLACE) is None, "one takes over for another"
    other = instance_facts(operation(Kind.REPLACE, "mem_2"))
    assert actions.member_denial(other, member(), Kind.REPLACE) is None
    going = instance_facts(operation(Kind.REPLACE, "mem_1"))
    denial = actions.member_denial(going, member(), Kind.REPLACE, queued=True)
    assert denial is not None
    assert (denial.code, "replaces this member already" in denial.detail) == (BUSY, True)


def test_a_refusal_leads_to_what_is_in_the_way() -> None:
    denial = actions.instance_denial(instance_facts(operation(Kind.UPGRADE)), Kind.RESTART)
    assert denial is not None
    refusal = denial.refusal()
    assert refusal.context == {"operation_id": "op_upgrade"}
    assert [(action.action, action.href) for action in refusal.allowed_actions] == [
        ("watch", "/v1/operations/op_upgrade")
    ]
    queued = actions.instance_denial(instance_facts(operation(Kind.UPGRADE, queued=True)), Kind.RESTART)
    assert queued is not None
    assert ("is under way" in denial.detail, "is queued" in queued.detail) == (True, True)
    assert Denial(NOT_NOW, "no").refusal().allowed_actions == []
