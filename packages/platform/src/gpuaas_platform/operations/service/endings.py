"""The end of operations, and what follows from it for queued operations, for their bulk, for their members.

The caller holds the lock of the instance."""

from gpuaas_contract.base import JsonObject
from gpuaas_contract.events import BulkEvent, InstanceEvent, MemberEvent, OperationEvent
from gpuaas_contract.instances import DesiredState, MemberStatus
from gpuaas_contract.operations import Kind, OperationError, OperationState
from gpuaas_platform.access.storage import access as access_store
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.instances.records import InstanceView, PreflightRecord
from gpuaas_platform.instances.rules.actions import excludes, turn_denial
from gpuaas_platform.instances.rules.gates import gate_failure, gate_step, shown_findings
from gpuaas_platform.instances.service import desires, preflights
from gpuaas_platform.instances.service.instances import facts_of
from gpuaas_platform.instances.storage import instances as instance_store
from gpuaas_platform.operations.records import OperationRecord
from gpuaas_platform.operations.rules.bulks import needed, outlook
from gpuaas_platform.operations.service.operations import changed
from gpuaas_platform.operations.service.resizes import answered
from gpuaas_platform.operations.storage import bulks as bulk_store
from gpuaas_platform.operations.storage import operations as store

_PREEMPTED = "preempted"
_OPEN = {OperationState.PENDING, OperationState.RUNNING}


async def finish(
    tx: Transaction, row: OperationRecord, state: OperationState, result: JsonObject, error: OperationError | None
) -> None:
    """End it, and whatever cannot go on without its success; then let the next ones begin."""
    await _end(tx, row, state, result, error)
    if row.preflight_id is not None:
        preflight = await preflights.answered(tx, row, state, result, error)
        if preflight.instance_id is not None:
            await _end_gate(tx, preflight, preflight.instance_id)
        return
    if state != OperationState.SUCCEEDED:
        await _cancel_followers(tx, row)
    await let_next_begin(tx, _instance_of(row))


async def _end_gate(tx: Transaction, preflight: PreflightRecord, instance_id: str) -> None:
    """Let the operations of a deploy begin where the app's checks found no error; else fail all of them, begun by
    nobody."""
    waiting = await store.lock_gated(tx, instance_id, preflight.id)
    if not waiting:
        return
    deploy = next((row for row in waiting if row.kind == Kind.DEPLOY), None)
    if deploy is not None:
        await store.report_step(tx, deploy, gate_step(preflight), attempt=deploy.attempt + 1)
    failures = [gate_failure(preflight, row.kind, called_off=deploy is None) for row in waiting]
    if not any(failures):
        for row in await store.open_gate(tx, [row.id for row in waiting]):
            await changed(tx, row, OperationEvent.REQUESTED, f"{row.kind}: the app's checks found nothing in the way")
        return
    found = shown_findings(preflight)
    for row, failure in zip(waiting, failures, strict=True):
        await _end(tx, row, OperationState.FAILED, {"preflight_id": preflight.id, "findings": found}, failure)
        await _cancel_followers(tx, row)
    await let_next_begin(tx, instance_id)


def _instance_of(row: OperationRecord) -> str:
    assert row.instance_id is not None, f"{row.id} is a preflight"
    return row.instance_id


async def cancel(tx: Transaction, row: OperationRecord, code: str, detail: str, *, retryable: bool = False) -> None:
    """Cancel an operation. One that nobody has claimed yet has had no effect, and is asked for anew instead of being
    retried; a deploy only ever is retried."""
    can_be_retried = retryable and (row.attempt > 0 or row.kind == Kind.DEPLOY)
    error = OperationError(code=code, detail=detail, retryable=can_be_retried)
    await finish(tx, row, OperationState.CANCELLED, {}, error)


async def preempt(tx: Transaction, rows: list[OperationRecord], detail: str) -> None:
    """Cancel operations for another one. Their members stay as they are: what pre-empts is about them."""
    error = OperationError(code=_PREEMPTED, detail=detail, retryable=False)
    for row in rows:
        present = await store.lock(tx, row.id)
        if present is not None and present.state in _OPEN:
            await finish(tx, present, OperationState.CANCELLED, {}, error)


async def _end(
    tx: Transaction,
    row: OperationRecord,
    state: OperationState,
    result: JsonObject,
    error: OperationError | None,
    *,
    judged: bool = True,
) -> None:
    await access_store.end_of_operation(tx, row.id)
    finished = await store.finish(tx, row.id, state, result, error)
    said = f"{row.kind} {state.value}" + (f": {error.detail}" if error else "")
    await changed(tx, finished, OperationEvent(state), said)
    preempted = error is not None and error.code == _PREEMPTED
    if state == OperationState.CANCELLED and row.attempt == 0 and not preempted:
        await take_back(tx, row)
    if row.kind == Kind.RESIZE:
        refused = "another app on the machine refused the resize"
        why = OperationError(code="withdrawn", detail=refused, retryable=False)
        for pointless in await store.lock_open(tx, await answered(tx, row, state, error)):
            await _end(tx, pointless, OperationState.CANCELLED, {}, why)
    if judged and row.bulk_id is not None:
        await judge_bulk(tx, row.bulk_id)


async def take_back(tx: Transaction, row: OperationRecord) -> None:
    """Roll back an operation that was cancelled before any claim."""
    instance = await instance_store.get(tx, _instance_of(row))
    assert instance is not None
    scope = {"project_id": instance.project_id, "instance_id": instance.id}
    new_member = row.member_id if row.kind == Kind.ADD else row.replacement_member_id
    if new_member is not None:
        member = await instance_store.report_member(tx, new_member, MemberStatus.REMOVED)
        await tx.changed(MemberEvent.REMOVED, member, message="nothing had been done for it yet", **scope)
        await follow_members(tx, instance)
    if row.undo is not None and instance.desired_state != DesiredState.DECOMMISSIONED:
        restored = await instance_store.restore(tx, instance.id, row.undo)
        await tx.changed(InstanceEvent.RESTORED, restored, message=f"{row.kind} was called off", **scope)


async def follow_members(tx: Transaction, instance: InstanceView) -> None:
    """Let the desired placement follow the members that live; a decommissioned instance keeps its last one."""
    if instance.desired_state == DesiredState.DECOMMISSIONED:
        return
    row = await instance_store.follow_members(tx, instance.id)
    if row is not None:
        await tx.changed(InstanceEvent.PLACED, row, project_id=row.project_id, instance_id=row.id)


async def _cancel_followers(tx: Transaction, row: OperationRecord) -> None:
    """Cancel those that are queued behind it: they were requested for after its success."""
    causes = [row]
    while causes:
        cause = causes.pop()
        for waiting in await store.list_queued(tx, _instance_of(row)):
            if waiting.number > cause.number and excludes(waiting, cause):
                detail = f"operation {cause.id} ({cause.kind}), which it waited for, did not succeed"
                error = OperationError(code="predecessor_failed", detail=detail, retryable=False)
                await _end(tx, waiting, OperationState.CANCELLED, {}, error)
                causes.append(waiting)


async def let_next_begin(tx: Transaction, instance_id: str) -> None:
    """Make those whose turn has come claimable; their deadline counts from now."""
    while (waiting := await store.list_queued(tx, instance_id)) and await _begin_one(tx, instance_id, waiting):
        pass


async def _begin_one(tx: Transaction, instance_id: str, waiting: list[OperationRecord]) -> bool:
    under_way = await store.list_open(tx, instance_id)
    for row in waiting:
        if any(other.number < row.number and excludes(other, row) for other in under_way):
            continue
        instance = await instance_store.get(tx, instance_id)
        assert instance is not None
        member = None if row.member_id is None else await instance_store.get_member(tx, row.member_id)
        denial = turn_denial(facts_of(instance), row, member)
        if denial is None:
            undo = await desires.apply(tx, instance, row.kind, row.input)
            begun = await store.dequeue(tx, row.id, undo)
            await changed(tx, begun, OperationEvent.REQUESTED, f"{row.kind}: its turn has come")
        else:
            error = OperationError(code="not_allowed_any_more", detail=denial.detail, retryable=False)
            await _end(tx, row, OperationState.CANCELLED, {}, error)
            await _cancel_followers(tx, row)
        return True
    return False


async def judge_bulk(tx: Transaction, bulk_id: str) -> None:
    """Cancel the unclaimed operations of a bulk whose policy cannot be met any more, and report its progress."""
    bulk = await bulk_store.get(tx, bulk_id)
    assert bulk is not None
    count = len(bulk.results)
    succeeded, unfinished = outlook(bulk.states)
    if unfinished and succeeded + unfinished < needed(bulk.policy.policy, count):
        detail = f"the policy of {bulk_id} cannot be met any more"
        error = OperationError(code="policy_not_met", detail=detail, retryable=False)
        for row in await bulk_store.list_unclaimed(tx, bulk_id):
            unfinished -= 1
            await _end(tx, row, OperationState.CANCELLED, {}, error, judged=False)
            await _cancel_followers(tx, row)
    touched = await bulk_store.touch(tx, bulk_id, ended=unfinished == 0)
    await tx.changed(
        BulkEvent.PROGRESSED if unfinished else BulkEvent.ENDED,
        touched,
        message=f"{succeeded} of {count} succeeded",
        project_id=bulk.project_id,
        instance_id=bulk.instance_id,
    )
