"""The work of an app's controller on operations: claim, keep, report, end. Each write under a fenced lease."""

from gpuaas_contract.events import MemberEvent, OperationEvent
from gpuaas_contract.instances import MemberStatus
from gpuaas_contract.operations import (
    EVIDENCE_BYTES,
    LEASE_SECONDS,
    RESULT_BYTES,
    CancelledRequest,
    Claim,
    ClaimRequest,
    CompleteRequest,
    FailRequest,
    Kind,
    Lease,
    Operation,
    OperationError,
    OperationState,
    StepReport,
    WorkAcknowledged,
)
from gpuaas_contract.problems import Code
from gpuaas_platform.access.storage import access as access_store
from gpuaas_platform.allocations.storage import allocations as allocation_store
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import Refusal, not_found
from gpuaas_platform.core.evidence import check_shown
from gpuaas_platform.core.records import to_wire
from gpuaas_platform.identity.rules.policy import Caller, Permission
from gpuaas_platform.instances.records import MemberView
from gpuaas_platform.instances.service import instances, preflights
from gpuaas_platform.instances.storage import instances as instance_store
from gpuaas_platform.operations.records import OperationRecord, OperationReference, OperationView
from gpuaas_platform.operations.service import receipts
from gpuaas_platform.operations.service.endings import cancel, finish, follow_members
from gpuaas_platform.operations.service.operations import changed, read, require_lease, require_operation, shown
from gpuaas_platform.operations.storage import operations as store

_TEARDOWNS = {Kind.REMOVE, Kind.REPLACE, Kind.DECOMMISSION}
CANCELLED = "cancelled"


async def claim_operation(
    tx: Transaction, caller: Caller, operation_id: str, body: ClaimRequest, lease_seconds: int = LEASE_SECONDS
) -> Claim:
    row = await require_operation(tx, caller, operation_id, Permission.OPERATION_WORK, lock=True)
    tx.match(row)
    if row.state.is_final:
        raise Refusal(Code.INVALID_STATE, f"the operation is {row.state} already")
    if row.queued:
        context = {"waits_for": list(row.waits_for)}
        what = "others that were asked for before" if row.gate_preflight_id is None else "the app's preflight"
        raise Refusal(Code.INVALID_STATE, f"the operation waits for {what}", context=context)
    if row.lease_live:
        raise Refusal(Code.LEASE_HELD, f"{row.lease_holder} holds the lease", retry_after=lease_seconds)
    if row.cancel_requested:
        raise Refusal(Code.INVALID_STATE, "the operation is being cancelled")
    if row.attempt:
        await access_store.end_of_operation(tx, operation_id)
    claimed = await store.claim(tx, operation_id, body.holder, caller.id, lease_seconds)
    took_over = f", taken over from {row.lease_holder}" if row.lease_holder is not None else ""
    assert claimed.fencing_token is not None
    await changed(
        tx, claimed, OperationEvent.CLAIMED, f"claimed by {body.holder}, attempt {claimed.attempt}{took_over}"
    )
    await tx.audit(
        "operation.claim",
        operation_id,
        project_id=row.project_id,
        detail={"holder": body.holder, "fencing_token": claimed.fencing_token},
    )
    return Claim(
        operation=await shown(tx, row, claimed),
        fencing_token=claimed.fencing_token,
        lease_seconds=lease_seconds,
    )


async def heartbeat(
    tx: Transaction, caller: Caller, operation_id: str, fencing_token: int, lease_seconds: int = LEASE_SECONDS
) -> WorkAcknowledged:
    """Extend the lease. The answer says whether the operation is to be cancelled."""
    await require_lease(tx, caller, operation_id, fencing_token)
    return _acknowledge(await store.extend_lease(tx, operation_id, lease_seconds))


def _acknowledge(row: OperationRecord) -> WorkAcknowledged:
    """Answer the holder of a live lease. The whole operation would grow with each of its steps."""
    assert row.lease_holder is not None
    assert row.lease_expires_at is not None
    lease = Lease(holder=row.lease_holder, expires_at=row.lease_expires_at)
    return to_wire(WorkAcknowledged, row, lease=lease)


async def yield_lease(tx: Transaction, caller: Caller, operation_id: str, fencing_token: int) -> Operation:
    row = await _hold(tx, caller, operation_id, fencing_token)
    if row.cancel_requested:
        await cancel(tx, row, CANCELLED, "its controller gave it back, as it was asked to stop", retryable=True)
        return await read(tx, operation_id)
    await access_store.end_of_operation(tx, operation_id)
    await changed(
        tx, await store.drop_lease(tx, operation_id), OperationEvent.YIELDED, f"{row.lease_holder} gave the lease back"
    )
    return await read(tx, operation_id)


async def report_step(tx: Transaction, caller: Caller, operation_id: str, body: StepReport) -> WorkAcknowledged:
    row = await require_lease(tx, caller, operation_id, body.fencing_token)
    check_shown(body.evidence, EVIDENCE_BYTES, "the evidence of a step", "/evidence")
    check_shown(body.message, EVIDENCE_BYTES, "the message of a step", "/message")
    check_shown(body.title, EVIDENCE_BYTES, "the title of a step", "/title")
    check_shown([command.name for command in body.commands], EVIDENCE_BYTES, "the commands of a step", "/commands")
    reported = await store.report_step(tx, row, body)
    message = f"{body.title}: {body.message}" if body.message else body.title
    await changed(tx, reported, OperationEvent(f"step_{body.status.value}"), message)
    return _acknowledge(reported)


async def _hold(tx: Transaction, caller: Caller, operation_id: str, fencing_token: int) -> OperationView:
    """Lock the operation under its live lease, and all that its end may touch, in the one order: machine, instance,
    operation."""
    found = await require_operation(tx, caller, operation_id, Permission.OPERATION_WORK)
    if found.kind == Kind.RESIZE:
        await allocation_store.lock(tx, found.input["allocation_id"])
    if (instance_id := found.instance_id or found.preflight_instance_id) is not None:
        await instance_store.lock_row(tx, instance_id)
    return await require_lease(tx, caller, operation_id, fencing_token)


async def complete_operation(tx: Transaction, caller: Caller, operation_id: str, body: CompleteRequest) -> Operation:
    row = await _hold(tx, caller, operation_id, body.fencing_token)
    check_shown(body.result, RESULT_BYTES, "the result of an operation", "/result")
    if row.preflight_id is not None:
        preflights.check_result(body.result)
    await _set_statuses(tx, row, body.member_statuses)
    await _require_gone(tx, row)
    await finish(tx, row, OperationState.SUCCEEDED, body.result, None)
    await tx.audit("operation.complete", operation_id, project_id=row.project_id)
    if row.kind == Kind.DECOMMISSION and row.instance_id is not None:
        await instances.end_if_gone(tx, row.instance_id)
        await receipts.issue(tx, row.instance_id, operation_id)
    return await read(tx, operation_id)


async def fail_operation(tx: Transaction, caller: Caller, operation_id: str, body: FailRequest) -> Operation:
    row = await _hold(tx, caller, operation_id, body.fencing_token)
    check_shown(body.result, RESULT_BYTES, "the result of an operation", "/result")
    check_shown(body.error.model_dump(mode="json"), EVIDENCE_BYTES, "the error of an operation", "/error")
    await finish(tx, row, OperationState.FAILED, body.result, body.error)
    await tx.audit("operation.fail", operation_id, project_id=row.project_id, detail={"code": body.error.code})
    return await read(tx, operation_id)


async def end_cancelled(tx: Transaction, caller: Caller, operation_id: str, body: CancelledRequest) -> Operation:
    """End an operation whose controller has stopped between two steps, as it was asked to."""
    row = await _hold(tx, caller, operation_id, body.fencing_token)
    if not row.cancel_requested:
        raise Refusal(Code.INVALID_STATE, "nobody asked to cancel the operation: complete it, or fail it with a reason")
    check_shown(body.result, RESULT_BYTES, "the result of an operation", "/result")
    await _set_statuses(tx, row, body.member_statuses)
    error = OperationError(code=CANCELLED, detail="its controller stopped, as it was asked to", retryable=True)
    await finish(tx, row, OperationState.CANCELLED, body.result, error)
    await tx.audit("operation.end_cancelled", operation_id, project_id=row.project_id)
    return await read(tx, operation_id)


async def _set_statuses(tx: Transaction, operation: OperationView, statuses: dict[str, MemberStatus]) -> None:
    members = await instance_store.get_members(tx, list(statuses))
    for member_id, status in statuses.items():
        member = members.get(member_id)
        if member is None or member.instance_id != operation.instance_id:
            raise not_found("member", member_id)
        check_member_write(operation, member, status)
        row = await instance_store.report_member(tx, member_id, status)
        await tx.changed(MemberEvent(status), row, project_id=operation.project_id, instance_id=operation.instance_id)
    if MemberStatus.REMOVED in statuses.values():
        assert operation.instance_id is not None
        await place_anew(tx, operation.instance_id)


def check_member_write(operation: OperationView, member: MemberView, status: MemberStatus | None) -> None:
    """Refuse an operation to write about others than its own members, and to bring a removed one back."""
    if operation.member_id is not None and member.id not in operation.member_ids:
        raise Refusal(Code.FORBIDDEN, "this operation is about another member")
    if status is None or status == member.status:
        return
    if member.status == MemberStatus.REMOVED:
        raise Refusal(Code.INVALID_STATE, "the member is removed; add its machine again as a new one")
    if status == MemberStatus.REMOVED and operation.kind not in _TEARDOWNS:
        raise Refusal(Code.FORBIDDEN, f"{operation.kind} removes no member: remove, replace and decommission do")


async def place_anew(tx: Transaction, instance_id: str) -> None:
    instance = await instance_store.get(tx, instance_id)
    assert instance is not None
    await follow_members(tx, instance)


async def _require_gone(tx: Transaction, operation: OperationView) -> None:
    """Refuse the success of a teardown as long as its members are there; what is left is a failure, with evidence."""
    if operation.kind not in _TEARDOWNS or operation.instance_id is None:
        return
    whole = operation.member_id is None
    left = [
        member.id
        for member in await instance_store.list_live(tx, operation.instance_id)
        if whole or member.id == operation.member_id
    ]
    if left:
        detail = f"report {', '.join(left[:5])} as removed first, or fail the operation and say what is left"
        raise Refusal(Code.INVALID_STATE, detail, context={"member_ids": left[:50]})


# What nobody does in time


async def fail_overdue(tx: Transaction) -> None:
    for found in await store.list_overdue(tx):
        row = await _lock(tx, found)
        if row.state.is_final or not row.overdue:
            continue
        if row.state == OperationState.PENDING and row.attempt == 0:
            detail = "no controller claimed the operation before its deadline; check that the app's controller runs"
        else:
            detail = "the operation did not end before its deadline"
        error = OperationError(code="deadline_exceeded", detail=detail, retryable=True)
        await finish(tx, row, OperationState.FAILED, row.result, error)


async def notice_expired(tx: Transaction) -> None:
    """Report expired leases; finish pending cancellations."""
    for found in await store.list_abandoned(tx):
        row = await _lock(tx, found)
        if row.state != OperationState.RUNNING or row.lease_live or row.expiry_noticed:
            continue
        if row.cancel_requested:
            await cancel(tx, row, CANCELLED, f"its controller {row.lease_holder} went silent", retryable=True)
            continue
        message = f"{row.lease_holder} went silent; any controller of {row.app_slug} can take over"
        await changed(tx, await store.notice_expiry(tx, row.id), OperationEvent.LEASE_EXPIRED, message)


async def _lock(tx: Transaction, found: OperationReference) -> OperationView:
    present = await store.get(tx, found.id)
    assert present is not None
    if present.kind == Kind.RESIZE:
        await allocation_store.lock(tx, present.input["allocation_id"])
    if (instance_id := found.instance_id or present.preflight_instance_id) is not None:
        await instance_store.lock_row(tx, instance_id)
    row = await store.lock(tx, found.id)
    assert row is not None
    return row
