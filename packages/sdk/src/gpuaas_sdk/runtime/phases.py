"""Named phases: a reconcile is a list of them over one scope, and each is a visible step of its operation."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Generic, TypeVar

from gpuaas_contract.base import JsonObject
from gpuaas_contract.instances import Member, MemberStatus
from gpuaas_sdk.errors import ANSWERS_LATER, LeaseLostError
from gpuaas_sdk.machines.base import MachineUnreachableError
from gpuaas_sdk.runtime.context import OperationContext, words_for
from gpuaas_sdk.runtime.errors import RetryLater

Scope = TypeVar("Scope")
COMES_BACK = (RetryLater, MachineUnreachableError, LeaseLostError, *ANSWERS_LATER)
"""After these the operation goes on later by itself, or belongs to somebody else by now."""
_DETAIL_LIMIT = 2_000


@dataclass(frozen=True, slots=True)
class Phase(Generic[Scope]):
    """Idempotent: it reads what it needs anew and changes only what is not yet as it should be. Its return value is
    shown as the step's evidence: never a secret."""

    key: str
    title: str
    run: Callable[[Scope], Awaitable[JsonObject | None]]


async def run_phases(
    operation: OperationContext, scope: Scope, phases: Iterable[Phase[Scope]]
) -> dict[str, JsonObject]:
    """Run them in their order, each announced before it begins; return the evidence of each by its key."""
    evidence: dict[str, JsonObject] = {}
    for phase in phases:
        async with operation.step(phase.key, phase.title) as step:
            step.evidence = evidence[phase.key] = await phase.run(scope) or {}
    return evidence


@asynccontextmanager
async def member_in_work(
    operation: OperationContext, member: Member, status: MemberStatus = MemberStatus.CONFIGURING
) -> AsyncIterator[None]:
    """Show that the member is being worked on, and that it failed where the operation does. Of its `adapter_detail`
    only `error` and `operation_id` change with a failure."""
    await operation.report_member(member.id, status=status)
    try:
        yield
    except COMES_BACK:
        raise
    except Exception as error:
        # As it is by now: the work, or an observer, may have reported more than the caller knows.
        known = (await operation.client.members.get(member.id)).adapter_detail
        detail = {
            **known,
            "error": words_for(error)[:_DETAIL_LIMIT],
            "operation_id": operation.operation_id,
        }
        await operation.report_member(member.id, status=MemberStatus.FAILED, adapter_detail=detail)
        raise
