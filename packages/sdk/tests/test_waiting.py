"""Members of a deploy wait for one another, but not for one that nobody brings up any more."""

from datetime import UTC, datetime

import httpx
import pytest

from gpuaas_contract.instances import Member, MemberStatus
from gpuaas_contract.operations import Claim, Operation, OperationState
from gpuaas_sdk import OperationContext
from gpuaas_sdk.runtime.context import LOOKS_FOR_EACH_END
from gpuaas_sdk.testing import ScriptedPlatform

from .sdk_test_platform import NoMachines

NOW = datetime(2030, 1, 1, tzinfo=UTC)
OWNED = {"revision": 1, "created_at": NOW, "updated_at": NOW, "correlation_id": "cor_1"}


def operation(state: OperationState) -> Operation:
    named = {"id": "op_1", "project_id": "prj_1", "app_slug": "echo", "kind": "deploy", "requested_by": "usr_1"}
    return Operation.model_validate({**OWNED, **named, "input": {}, "state": state, "attempt": 1, "deadline": NOW})


def member(status: MemberStatus, last: str | None = "op_1") -> Member:
    named = {"id": "mem_1", "instance_id": "ins_1", "component_key": "controller", "allocation_id": "alc_1"}
    return Member.model_validate({**OWNED, **named, "status": status, "last_operation_id": last})


@pytest.mark.parametrize(
    ("status", "state", "failed"),
    [
        (MemberStatus.CONFIGURING, OperationState.RUNNING, False),
        (MemberStatus.CONFIGURING, OperationState.FAILED, True),
        (MemberStatus.PENDING, OperationState.CANCELLED, True),
        (MemberStatus.CONFIGURING, OperationState.SUCCEEDED, False),
        (MemberStatus.FAILED, OperationState.FAILED, True),
        (MemberStatus.FAILED, OperationState.PENDING, False),
        (MemberStatus.READY, OperationState.FAILED, False),
    ],
)
async def test_a_member_has_failed_when_nobody_brings_it_up_any_more(
    status: MemberStatus, state: OperationState, failed: bool
) -> None:
    """While its retry is not claimed yet, it still shows the failure before it."""
    platform = ScriptedPlatform(httpx.Response(200, content=operation(state).model_dump_json()))
    claim = Claim(operation=operation(OperationState.RUNNING), fencing_token=1, lease_seconds=15)
    context = OperationContext(platform.client(), claim, NoMachines())
    looks = [await context.has_failed(member(status)) for _ in range(LOOKS_FOR_EACH_END)]
    assert any(looks) is failed


async def test_a_member_that_failed_before_any_operation_has_failed() -> None:
    claim = Claim(operation=operation(OperationState.RUNNING), fencing_token=1, lease_seconds=15)
    context = OperationContext(ScriptedPlatform().client(), claim, NoMachines())
    assert await context.has_failed(member(MemberStatus.FAILED, last=None))


async def test_what_goes_on_is_asked_for_now_and_then_only() -> None:
    platform = ScriptedPlatform(httpx.Response(200, content=operation(OperationState.RUNNING).model_dump_json()))
    claim = Claim(operation=operation(OperationState.RUNNING), fencing_token=1, lease_seconds=15)
    context = OperationContext(platform.client(), claim, NoMachines())
    for _ in range(3 * LOOKS_FOR_EACH_END):
        assert not await context.has_failed(member(MemberStatus.CONFIGURING))
    assert len(platform.requests) == 3
