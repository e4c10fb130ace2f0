"""Looking after an instance under its reconcile lease: what is seen is reported, what is broken is asked to be mended.

An observer can only read. A repair is an operation like any other: there is one way in which machines change."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from gpuaas_contract.app_usage import AppUsageReport
from gpuaas_contract.instances import Condition, ConditionStatus, InstanceStatus, Member, MemberStatus
from gpuaas_sdk import ConflictError, ForbiddenError, Observation, ObserveContext, ObservedMachine
from gpuaas_sdk.observations import Answer, all_of

from reference_app.software import Role, observe_running

OBSERVE_SECONDS = 10.0
USAGE_SECONDS = 10
_HEALTHY = {InstanceStatus.RUNNING, InstanceStatus.UNKNOWN, InstanceStatus.DEGRADED}
_WORKING = {MemberStatus.READY, MemberStatus.DRAINED}
_STATUS = {
    Answer.YES: ConditionStatus.TRUE,
    Answer.NO: ConditionStatus.FALSE,
    Answer.UNKNOWN: ConditionStatus.UNKNOWN,
}


async def observe(context: ObserveContext) -> None:
    if context.instance.status not in _HEALTHY:
        return
    members = [member for member in context.live_members if member.status in _WORKING]
    seen = await context.observe_members(members, _observe_member)
    for member in members:
        await context.report_member(member.id, conditions=[_condition(context, "Ready", seen[member.id])])
    await context.report_instance(conditions=[_condition(context, "Degraded", ~all_of(seen.values()))])
    for member in members:
        # Only a "no" asks for a repair: a machine that does not answer may be well.
        if seen[member.id].is_no:
            await _ask_for_repair(context, member)
    await _report_usage(context, [member for member in members if seen[member.id].is_yes])


async def _observe_member(machine: ObservedMachine, member: Member) -> Observation:
    return await observe_running(machine, Role(member.component_key))


def _condition(context: ObserveContext, kind: str, seen: Observation) -> Condition:
    return Condition(
        type=kind,
        status=_STATUS[seen.answer],
        reason="Observed",
        message=seen.evidence,
        observed_generation=context.instance.generation,
    )


async def _ask_for_repair(context: ObserveContext, member: Member) -> None:
    # A conflict: something is under way already. Forbidden: its account may only report, and people ask for the repair.
    with suppress(ConflictError, ForbiddenError):
        await context.request("recover", member_id=member.id)


async def _report_usage(context: ObserveContext, running: list[Member]) -> None:
    """The last whole interval, for each worker. Its id says which, so that it counts once however often it is sent."""
    number = int(datetime.now(UTC).timestamp() // USAGE_SECONDS)
    ended = datetime.fromtimestamp(number * USAGE_SECONDS, UTC)
    started = ended - timedelta(seconds=USAGE_SECONDS)
    records = [
        AppUsageReport(
            record_id=f"{member.id}-{number}",
            work_id=member.id,
            subject=context.instance.name,
            quantity=Decimal(USAGE_SECONDS),
            unit="worker_seconds",
            started_at=started,
            ended_at=ended,
        )
        for member in running
        if member.component_key == Role.WORKER and member.created_at <= started
    ]
    if records:
        await context.client.app_usage.report(context.instance_id, records)
