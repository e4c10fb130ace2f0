"""Operations as they are read and made, and the lease under which a controller works on one."""

from dataclasses import replace

from gpuaas_contract import ids
from gpuaas_contract.base import JsonObject
from gpuaas_contract.events import OperationEvent
from gpuaas_contract.manifest import OperationKind
from gpuaas_contract.operations import Lease, Operation, OperationPage, Step
from gpuaas_contract.problems import Code
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import Refusal, not_found
from gpuaas_platform.core.pages import cut_page, decode_cursor
from gpuaas_platform.core.records import to_wire
from gpuaas_platform.identity.rules.policy import Caller, Permission, Scope
from gpuaas_platform.identity.service.tenants import visible_projects
from gpuaas_platform.instances.records import InstanceView
from gpuaas_platform.instances.rules.actions import RETRIED_FROM, InstanceFacts, operation_actions
from gpuaas_platform.instances.service import instances
from gpuaas_platform.instances.storage import instances as instance_store
from gpuaas_platform.operations.records import (
    NewOperation,
    OperationFilter,
    OperationRecord,
    OperationView,
    PreviousDesire,
)
from gpuaas_platform.operations.storage import operations as store


async def to_models(tx: Transaction, rows: list[OperationView]) -> list[Operation]:
    steps: dict[str, list[Step]] = {row.id: [] for row in rows}
    # What nobody has claimed yet has none but the platform's own.
    if begun := [row.id for row in rows if row.attempt or row.gate_preflight_id is not None]:
        for step in await store.list_steps(tx, begun):
            steps[step.operation_id].append(to_wire(Step, step))
    facts: dict[str, InstanceFacts] = {}
    # Only a retry depends on the instance, and one with many open operations is long to read.
    if retried := {row.instance_id for row in rows if row.instance_id and row.state in RETRIED_FROM}:
        found = await instance_store.list_summaries(tx, sorted(retried))
        facts = {instance.id: instances.facts_of(instance) for instance in found}
    return [_to_model(row, steps[row.id], facts.get(row.instance_id or "")) for row in rows]


def _to_model(row: OperationView, steps: list[Step], facts: InstanceFacts | None) -> Operation:
    """Show an operation. A preflight has no instance, and the only thing to do about it is to ask for another one."""
    lease = None
    if row.lease_holder is not None and row.lease_expires_at is not None:
        lease = Lease(holder=row.lease_holder, expires_at=row.lease_expires_at, expired=not row.lease_live)
    actions = [] if row.instance_id is None else operation_actions(facts, row)
    return to_wire(Operation, row, steps=steps, lease=lease, allowed_actions=actions)


async def read(tx: Transaction, operation_id: str) -> Operation:
    row = await store.get(tx, operation_id)
    assert row is not None
    return (await to_models(tx, [row]))[0]


async def shown(tx: Transaction, before: OperationView, after: OperationRecord) -> Operation:
    """Show an operation that was read under its lock, as a write of its lease holder left it."""
    columns = {name: getattr(after, name) for name in OperationRecord.field_names()}
    return (await to_models(tx, [replace(before, **columns, lease_live=True)]))[0]


async def changed(tx: Transaction, row: OperationRecord, event: OperationEvent, message: str = "") -> None:
    await tx.changed(
        event,
        row,
        message=message,
        project_id=row.project_id,
        instance_id=row.instance_id,
        app_slug=row.app_slug,
    )


async def require_operation(
    tx: Transaction, caller: Caller, operation_id: str, permission: Permission, *, lock: bool = False
) -> OperationView:
    row = await (store.lock if lock else store.get)(tx, operation_id)
    if row is None:
        raise not_found("operation", operation_id)
    scope = Scope(tenant_id=row.tenant_id, project_id=row.project_id, app_slug=row.app_slug)
    caller.require(permission, scope, "operation", operation_id, operator_id=row.operator_account_id)
    return row


async def get_operation(tx: Transaction, caller: Caller, operation_id: str) -> Operation:
    row = await require_operation(tx, caller, operation_id, Permission.INSTANCE_READ)
    return (await to_models(tx, [row]))[0]


async def list_operations(
    tx: Transaction,
    caller: Caller,
    project_id: str | None,
    instance_id: str | None,
    member_id: str | None,
    state: str | None,
    claimable: bool,
    cursor: str | None,
    limit: int,
) -> OperationPage:
    projects = await visible_projects(tx, caller, project_id, Permission.INSTANCE_READ)
    if instance_id is not None:
        await instances.require_instance(tx, caller, instance_id, Permission.INSTANCE_READ)
    if member_id is not None:
        await instances.require_member(tx, caller, member_id, Permission.INSTANCE_READ)
    if claimable and caller.app_slug is None:
        raise Refusal(Code.FORBIDDEN, "only a service account that is bound to an app can claim operations")
    app = caller.app_slug if claimable else caller.only_app
    only = OperationFilter(projects, instance_id, member_id, state, app, caller.id if claimable else None)
    rows, next_cursor = cut_page(await store.list_matching(tx, only, decode_cursor(cursor), limit + 1), limit)
    return OperationPage(items=await to_models(tx, rows), next_cursor=next_cursor)


async def insert(
    tx: Transaction,
    instance: InstanceView,
    declared: OperationKind,
    member_id: str | None,
    input: JsonObject,
    *,
    queued: bool = False,
    replacement_member_id: str | None = None,
    bulk_id: str | None = None,
    undo: PreviousDesire | None = None,
) -> OperationRecord:
    """Insert an operation whose input is known to be right."""
    operation = NewOperation(
        id=ids.new_id(ids.OPERATION),
        kind=declared.kind,
        input=input,
        deadline_seconds=declared.deadline_seconds,
        member_id=member_id,
        replacement_member_id=replacement_member_id,
        bulk_id=bulk_id,
        queued=queued,
        undo=undo,
    )
    row = await store.insert(tx, instance, operation)
    for id in (member_id, replacement_member_id):
        if id is not None:
            await instance_store.set_last_operation(tx, id, row.id)
    event = OperationEvent.QUEUED if queued else OperationEvent.REQUESTED
    await changed(tx, row, event, f"{declared.kind} {event}")
    return row


async def require_lease(
    tx: Transaction, caller: Caller, operation_id: str, fencing_token: int, *, instance_id: str | None = None
) -> OperationView:
    """Lock the operation where the caller holds its live lease under exactly this token."""
    row = await require_operation(tx, caller, operation_id, Permission.OPERATION_WORK, lock=True)
    if instance_id is not None and row.instance_id != instance_id:
        raise Refusal(Code.FORBIDDEN, "this operation belongs to another instance")
    if row.state.is_final:
        raise Refusal(Code.STALE_LEASE, f"operation {operation_id} is {row.state} already; its lease is over")
    if row.fencing_token != fencing_token or row.lease_account_id != caller.id or not row.lease_live:
        state = row.state if row.fencing_token is None else "held under another token or expired"
        raise Refusal(
            Code.STALE_LEASE,
            f"this lease on {operation_id} is over ({state}); stop, and claim it again if you may",
        )
    return row
