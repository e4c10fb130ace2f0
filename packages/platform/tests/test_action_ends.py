"""Retrying, calling off and writing off what is under way or has failed, and what is left of a queue on its turn."""

from typing import Any

import pytest

from gpuaas_contract.instances import DesiredState, MemberStatus
from gpuaas_contract.operations import Kind, OperationError, OperationState
from gpuaas_contract.problems import Code
from gpuaas_platform.instances.rules import actions
from gpuaas_platform.operations.records import OperationView

from .platform_test_lives import LONG_AGO, NODE, ended, instance_facts, member, operation

NOT_NOW, GONE, BUSY = Code.ACTION_NOT_ALLOWED, Code.INVALID_STATE, Code.OPERATION_RUNNING
FAILED, CANCELLED, SUCCEEDED = OperationState.FAILED, OperationState.CANCELLED, OperationState.SUCCEEDED
STOPPED, GOING = {"desired_state": DesiredState.STOPPED}, {"desired_state": DesiredState.DECOMMISSIONED}
HOPELESS = OperationError(code="failed", detail="no such version", retryable=False)
PASSING = OperationError(code="failed", detail="try again", retryable=True)
OVER = {"ended_at": LONG_AGO}


def code(denial: actions.Denial | None) -> Code | None:
    return None if denial is None else denial.code


@pytest.mark.parametrize("state", OperationState)
def test_only_what_failed_or_was_called_off_is_retried(state: OperationState) -> None:
    denial = actions.retry_denial(instance_facts(), ended(Kind.UPGRADE, state))
    assert code(denial) == (None if state in {FAILED, CANCELLED} else GONE)


@pytest.mark.parametrize(
    ("operation", "facts", "expected"),
    [
        (ended(Kind.RESIZE, FAILED, "mem_1"), {}, GONE),
        (ended(Kind.UPGRADE, FAILED, is_latest=False), {}, GONE),
        (ended(Kind.UPGRADE, FAILED), OVER, GONE),
        (ended(Kind.DRAIN, FAILED, "mem_1", member_status=MemberStatus.REMOVED), {}, GONE),
        (ended(Kind.REPLACE, FAILED, "mem_1", replacement_status=MemberStatus.REMOVED), {}, GONE),
        (ended(Kind.UPGRADE, FAILED, error=HOPELESS), {}, NOT_NOW),
        (ended(Kind.UPGRADE, FAILED, error=PASSING), {}, None),
        (ended(Kind.UPGRADE, FAILED, error=None), {}, None),
        (ended(Kind.UPGRADE, FAILED), {"open_operations": [operation(Kind.DRAIN, "mem_1")]}, BUSY),
        (ended(Kind.DRAIN, FAILED, "mem_1"), {"open_operations": [operation(Kind.DRAIN, "mem_2")]}, None),
        (ended(Kind.DRAIN, FAILED, "mem_1"), {"open_operations": [operation(Kind.DRAIN, "mem_1")]}, BUSY),
        (
            ended(Kind.REPLACE, FAILED, "mem_1", replacement_member_id="mem_2"),
            {"open_operations": [operation(Kind.DRAIN, "mem_2")]},
            BUSY,
        ),
        (ended(Kind.UPGRADE, FAILED), GOING, GONE),
        (ended(Kind.DECOMMISSION, FAILED), GOING, None),
        (ended(Kind.STOP, FAILED), STOPPED, None),
        (ended(Kind.DRAIN, FAILED, "mem_1"), STOPPED, NOT_NOW),
        (ended(Kind.REMOVE, FAILED, "mem_1"), {}, None),
        (ended(Kind.REMOVE, FAILED, "mem_1"), {"counts": {NODE: [2, 1]}}, Code.COMPONENT_LIMIT),
    ],
)
def test_retries(operation: OperationView, facts: dict[str, Any], expected: Code | None) -> None:
    assert code(actions.retry_denial(instance_facts(**facts), operation)) == expected


def test_a_retry_that_would_not_help_says_why() -> None:
    denial = actions.retry_denial(instance_facts(), ended(Kind.UPGRADE, FAILED, error=HOPELESS))
    assert denial is not None
    assert denial.detail.endswith("no such version")


@pytest.mark.parametrize(
    ("operation", "expected"),
    [
        (operation(Kind.UPGRADE), None),
        (operation(Kind.UPGRADE, state=OperationState.PENDING), None),
        (operation(Kind.UPGRADE, cancel_requested=True), GONE),
        (operation(Kind.DECOMMISSION), NOT_NOW),
        (operation(Kind.RESIZE, "mem_1"), NOT_NOW),
        *((ended(Kind.UPGRADE, state), GONE) for state in OperationState if state.is_final),
    ],
)
def test_calling_off(operation: OperationView, expected: Code | None) -> None:
    assert code(actions.cancel_denial(operation)) == expected


@pytest.mark.parametrize(
    ("of", "facts", "expected"),
    [
        ({"last_kind": Kind.REMOVE, "last_state": FAILED}, {}, None),
        ({"last_kind": Kind.REMOVE, "last_state": CANCELLED}, {}, NOT_NOW),
        ({"last_kind": Kind.DRAIN, "last_state": FAILED}, {}, NOT_NOW),
        ({"last_kind": Kind.REMOVE, "last_state": FAILED, "status": MemberStatus.REMOVED}, {}, GONE),
        (
            {"last_kind": Kind.REMOVE, "last_state": FAILED},
            {"open_operations": [operation(Kind.REMOVE, "mem_1")]},
            BUSY,
        ),
    ],
)
def test_forgetting_a_member(of: dict[str, Any], facts: dict[str, Any], expected: Code | None) -> None:
    assert code(actions.forget_denial(instance_facts(**facts), member(**of))) == expected


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"last_operation": ended(Kind.DECOMMISSION, FAILED)}, None),
        ({"last_operation": ended(Kind.DECOMMISSION, SUCCEEDED)}, NOT_NOW),
        ({"last_operation": ended(Kind.UPGRADE, FAILED)}, NOT_NOW),
        ({"last_operation": None}, NOT_NOW),
        ({"last_operation": ended(Kind.DECOMMISSION, FAILED), **OVER}, GONE),
        (
            {
                "last_operation": ended(Kind.DECOMMISSION, FAILED),
                "open_operations": [operation(Kind.DECOMMISSION)],
            },
            BUSY,
        ),
    ],
)
def test_abandoning_an_instance(facts: dict[str, Any], expected: Code | None) -> None:
    assert code(actions.abandon_denial(instance_facts(**{**GOING, **facts}))) == expected


@pytest.mark.parametrize(
    ("kind", "status", "facts", "expected"),
    [
        (Kind.RESTART, None, {}, None),
        (Kind.RESTART, None, {"deployed": False}, NOT_NOW),
        (Kind.RESTART, None, STOPPED, NOT_NOW),
        (Kind.START, None, STOPPED, None),
        (Kind.STOP, None, STOPPED, NOT_NOW),
        (Kind.DRAIN, MemberStatus.READY, {}, None),
        (Kind.DRAIN, MemberStatus.STOPPED, {}, NOT_NOW),
        (Kind.DRAIN, MemberStatus.READY, STOPPED, NOT_NOW),
        (Kind.REMOVE, MemberStatus.READY, {"counts": {NODE: [1, 0]}}, None),
        (Kind.REMOVE, MemberStatus.READY, STOPPED, None),
    ],
)
def test_on_its_turn(kind: Kind, status: MemberStatus | None, facts: dict[str, Any], expected: Code | None) -> None:
    """Room for a removal was kept when it was queued, so it is not counted again."""
    target = None if status is None else member(status)
    waiting = operation(kind, None if status is None else "mem_1")
    assert code(actions.turn_denial(instance_facts(**facts), waiting, target)) == expected
