"""Members of a deploy wait for one another, but not for one that nobody brings up any more."""

from datetime import UTC, datetime

import httpx
import pytest

from gpuaas_contract.instances import Member, MemberStatus
from gpuaas_contract.operations import Claim, Operation, OperationState
from gpuaas_sdk import OperationContext
from gpuaas_sdk.testing import ScriptedPlatform
from slurm_app.reconcilers.cluster import LOOKS_FOR_EACH_END, is_lost

NOW = datetime(2030, 1, 1, tzinfo=UTC)
OWNED = {"revision": 1, "created_at": NOW, "updated_at": NOW, "correlation_id": "cor_1"}


class NoMachines:
    async def prepare(self) -> None:
        return

    def machine(self, allocation_id: str) -> None:
        raise AssertionError(allocation_id)

    async def close(self) -> None:
        return


def operation(state: OperationState) -> Operation:
    named = {"id": "op_1", "project_id": "prj_1", "app_slug": "slurm", "kind": "deploy", "requested_by": "usr_1"}
    return Operation.model_validate({**OWNED, **named, "input": {}, "state": state, "attempt": 1, "deadline": NOW})


def member(status: MemberStatus) -> Member:
    named = {"id": "mem_1", "instance_id": "ins_1", "component_key": "controller", "allocation_id": "alc_1"}
    return Member.model_validate({**OWNED, **named, "status": status, "last_operation_id": "op_1"})


@pytest.mark.parametrize(
    ("status", "state", "lost"),
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
async def test_a_member_is_lost_when_its_operation_ended_without_it(
    status: MemberStatus, state: OperationState, lost: bool
) -> None:
    platform = ScriptedPlatform(httpx.Response(200, content=operation(state).model_dump_json()))
    claim = Claim(operation=operation(OperationState.RUNNING), fencing_token=1, lease_seconds=15)
    context = OperationContext(platform.client(), claim, NoMachines())
    assert await is_lost(context, member(status), LOOKS_FOR_EACH_END) is lost


async def test_what_goes_on_is_asked_for_now_and_then_only() -> None:
    platform = ScriptedPlatform(httpx.Response(200, content=operation(OperationState.RUNNING).model_dump_json()))
    claim = Claim(operation=operation(OperationState.RUNNING), fencing_token=1, lease_seconds=15)
    context = OperationContext(platform.client(), claim, NoMachines())
    for look in range(3 * LOOKS_FOR_EACH_END):
        assert not await is_lost(context, member(MemberStatus.CONFIGURING), look)
    assert len(platform.requests) == 3
