"""Histories and explanations of instances, and traces of correlation ids."""

from gpuaas_contract.allocations import AllocationStatus
from gpuaas_contract.audit import PLATFORM_CHAIN
from gpuaas_contract.findings import Finding, Severity
from gpuaas_contract.history import Explanation, InstanceEvent, InstanceEventPage, RequestRecord, Trace
from gpuaas_contract.instances import Instance, InstanceStatus, Member
from gpuaas_contract.nouns import Noun
from gpuaas_contract.operations import Operation, OperationState, Step, StepStatus
from gpuaas_contract.problems import AllowedAction
from gpuaas_platform.audit.records import AuditEntryRecord
from gpuaas_platform.audit.service import to_entry
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import not_found
from gpuaas_platform.core.pages import decode_cursor, encode_cursor, foreign_cursor
from gpuaas_platform.core.records import to_wire
from gpuaas_platform.feed.records import EventFilter, RequestLogRecord
from gpuaas_platform.feed.rules import may_see
from gpuaas_platform.feed.storage import history as store
from gpuaas_platform.identity.rules.operators import operator_finding
from gpuaas_platform.identity.rules.policy import Caller, Permission, Scope
from gpuaas_platform.identity.service.presence import find_controller
from gpuaas_platform.instances.records import InstanceView
from gpuaas_platform.instances.service import instances
from gpuaas_platform.operations.records import OperationView
from gpuaas_platform.operations.service import operations
from gpuaas_platform.operations.storage import operations as operation_store

NEWEST = 10
MOST_MACHINES = 10
MOST_TRACED = 500
_DONE = {OperationState.SUCCEEDED, OperationState.CANCELLED}
_UNWELL = {InstanceStatus.DEGRADED, InstanceStatus.UNKNOWN}


async def list_events(
    tx: Transaction,
    caller: Caller,
    instance_id: str,
    only: EventFilter,
    cursor: str | None,
    limit: int,
    *,
    newest_first: bool,
) -> InstanceEventPage:
    await instances.require_instance(tx, caller, instance_id, Permission.INSTANCE_READ)
    position = decode_cursor(cursor)
    if position and not position.isdecimal():
        raise foreign_cursor()
    after = int(position) if position else None
    rows = await store.list_events(tx, instance_id, only, after, limit + 1, newest_first=newest_first)
    next_cursor = encode_cursor(str(rows[limit - 1].seq)) if len(rows) > limit else None
    return InstanceEventPage(items=[to_wire(InstanceEvent, row) for row in rows[:limit]], next_cursor=next_cursor)


async def explain(tx: Transaction, caller: Caller, instance_id: str) -> Explanation:
    row = await instances.require_instance(tx, caller, instance_id, Permission.INSTANCE_READ)
    instance = instances.to_model(row)
    operation_id = await store.find_operation(tx, instance_id)
    operation = await operations.read(tx, operation_id) if operation_id is not None else None
    member_id = await _member_to_show(tx, instance_id, operation)
    member = await instances.get_member(tx, caller, member_id) if member_id is not None else None
    newest = await store.list_events(tx, instance_id, EventFilter(), None, NEWEST, newest_first=True)
    failed = _failed_step(operation)
    waiting = await _waiting(tx, row, operation)
    return Explanation(
        summary=_summary(instance, operation, failed, waiting),
        instance=instance,
        member=member,
        member_counts=await store.count_members(tx, instance_id),
        operation=operation,
        failed_step=failed,
        correlation_id=operation.correlation_id if operation is not None else instance.correlation_id,
        adapter_detail=member.adapter_detail if member is not None else {},
        waiting=waiting,
        actions=_actions(instance, operation, member),
        events=[to_wire(InstanceEvent, event) for event in reversed(newest)],
    )


async def _member_to_show(tx: Transaction, instance_id: str, operation: Operation | None) -> str | None:
    """The member of the operation that failed or is under way, else one that is unwell, else that of the newest."""
    about = None if operation is None else operation.member_id
    if about is not None and operation is not None and operation.state not in _DONE:
        return about
    return await store.find_unwell_member(tx, instance_id) or about or await store.find_first_member(tx, instance_id)


def _failed_step(operation: Operation | None) -> Step | None:
    steps = [] if operation is None else operation.steps
    return next((step for step in reversed(steps) if step.status == StepStatus.FAILED), None)


def _actions(instance: Instance, operation: Operation | None, member: Member | None) -> list[AllowedAction]:
    """The nearest first; each once."""
    found: dict[tuple[str, str | None], AllowedAction] = {}
    for source in (operation, member, instance):
        for action in source.allowed_actions if source is not None else ():
            found.setdefault((action.action, action.href), action)
    return list(found.values())


async def _waiting(tx: Transaction, instance: InstanceView, operation: Operation | None) -> list[Finding]:
    found: list[Finding] = []
    if instance.ended_at is not None:
        return found
    for machine in await store.list_silent_machines(tx, instance.id, MOST_MACHINES):
        if machine.status != AllocationStatus.ACTIVE:
            message, action = f"machine {machine.name} is {machine.status}", "look at its timeline"
            found.append(_warning("machine_not_active", message, f"{action}: GET {Noun.ALLOCATION.href(machine.id)}"))
        else:
            message = f"node {machine.node_name}, which carries machine {machine.name}, is offline"
            found.append(_warning("node_offline", message, "bring the node's agent back; what is on it may run on"))
    if instance.operator_account_id is not None:
        operator = operator_finding(instance.operator_account_id, instance.operator, instance.app_slug)
        found += [] if operator is None else [operator]
    if operation is not None and not operation.state.is_final:
        found += await _held_up(tx, instance, operation)
    return found


async def _held_up(tx: Transaction, instance: InstanceView, operation: Operation) -> list[Finding]:
    found = []
    gate_id = operation.gate_preflight_id if operation.queued else None
    gated = gate_id is not None
    if gate_id is not None:
        message = f"{operation.kind} waits for the app's own checks of the machines"
        found.append(_warning("preflight", message, f"wait; GET {Noun.PREFLIGHT.href(gate_id)}"))
    elif operation.queued:
        waits = ", ".join(operation.waits_for)
        found.append(_warning("queued", f"{operation.kind} waits for {waits}", "wait, or cancel what is before it"))
    if operation.lease is not None and operation.lease.expired:
        message = f"{operation.lease.holder} holds the lease of {operation.kind} and is silent"
        found.append(_warning("lease_expired", message, "any controller of the app takes it over; look at its log"))
    if operation.cancel_requested:
        found.append(_warning("cancel_requested", f"{operation.kind} stops at the next boundary between steps", "wait"))
    unclaimed = operation.lease is None or operation.lease.expired
    if unclaimed and (gated or not operation.queued):
        missing = None
        if instance.operator_account_id is None:
            missing = await find_controller(tx, instance.app_slug, instance.tenant_id, instance.project_id)
        if missing is not None:
            found.append(missing)
        elif operation.state == OperationState.PENDING and operation.attempt == 0 and not gated:
            found.append(_warning("not_claimed", f"no controller has claimed {operation.kind} yet", "wait a moment"))
    return found


def _warning(code: str, message: str, action: str) -> Finding:
    return Finding(severity=Severity.WARNING, code=code, message=message, action=action)


def _summary(instance: Instance, operation: Operation | None, failed: Step | None, waiting: list[Finding]) -> str:
    said = f"{instance.name} ({instance.app_slug} {instance.versions.app}) is {instance.status.value}"
    if instance.status in _UNWELL and instance.reason and (operation is None or operation.state in _DONE):
        return f"{said}: {instance.reason}"
    if operation is None:
        return f"{said}."
    if operation.state == OperationState.FAILED:
        at = f" at the step {failed.title!r}" if failed is not None else ""
        why = f": {operation.error.detail}" if operation.error is not None else ""
        return f"{said}: {operation.kind} failed{at}{why}"
    if operation.state.is_final:
        return f"{said}; the last operation, {operation.kind}, {operation.state.value}."
    running = next((step for step in reversed(operation.steps) if step.status == StepStatus.RUNNING), None)
    doing = f", at the step {running.title!r}" if running is not None else ""
    held = f"; {waiting[0].message}" if waiting else ""
    return f"{said}: {operation.kind} is {operation.state.value}{doing}{held}."


async def trace(tx: Transaction, caller: Caller, correlation_id: str) -> Trace:
    """Ids are chosen by callers, so that everything found is asked about for itself."""
    requests = [row for row in await store.list_requests(tx, correlation_id, MOST_TRACED) if _sees_request(caller, row)]
    audit = [row for row in await store.list_audit(tx, correlation_id, MOST_TRACED) if _sees_audit(caller, row)]
    ids = await store.list_operation_ids(tx, correlation_id, MOST_TRACED)
    rows = [row for id in ids if (row := await operation_store.get(tx, id)) is not None and _sees(caller, row)]
    events = [
        row
        for row in await store.list_traced_events(tx, correlation_id, MOST_TRACED)
        if may_see(caller, row.noun, Scope(row.tenant_id, row.project_id, row.app_slug))
    ]
    if not (requests or audit or rows or events):
        raise not_found("trace", correlation_id)
    return Trace(
        correlation_id=correlation_id,
        requests=[to_wire(RequestRecord, row) for row in requests],
        audit=[to_entry(row) for row in audit],
        operations=await operations.to_models(tx, rows),
        events=[to_wire(InstanceEvent, row) for row in events],
        truncated=any(len(found) >= MOST_TRACED for found in (requests, audit, ids, events)),
    )


def _sees(caller: Caller, operation: OperationView) -> bool:
    scope = Scope(operation.tenant_id, operation.project_id, operation.app_slug)
    return caller.may(Permission.INSTANCE_READ, scope)


def _sees_request(caller: Caller, request: RequestLogRecord) -> bool:
    """One's own; of others, what one may read in the audit trail."""
    scope = Scope(request.tenant_id, request.project_id)
    return request.principal_id == caller.id or caller.may(Permission.AUDIT_READ, scope)


def _sees_audit(caller: Caller, entry: AuditEntryRecord) -> bool:
    tenant_id = None if entry.chain == PLATFORM_CHAIN else entry.chain
    scope = Scope(tenant_id, entry.project_id)
    return entry.principal_id == caller.id or caller.may(Permission.AUDIT_READ, scope)
