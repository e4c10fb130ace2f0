"""Requests for operations: on an instance, on a member, to retry one, to cancel one."""

from dataclasses import replace

from gpuaas_contract import ids
from gpuaas_contract.base import JsonObject
from gpuaas_contract.events import BulkEvent, MemberEvent, OperationEvent
from gpuaas_contract.instances import DesiredState, Placement
from gpuaas_contract.manifest import Manifest, OperationKind
from gpuaas_contract.operations import INSTALLING_KINDS, Kind, Operation, OperationCreate, OperationState
from gpuaas_contract.problems import Code, FieldError
from gpuaas_platform.allocations.storage import allocations as allocation_store
from gpuaas_platform.catalogue.service.entitlements import require_entitled
from gpuaas_platform.catalogue.service.versions import manifest_of
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import Refusal, not_found
from gpuaas_platform.identity.rules.policy import Caller, Permission
from gpuaas_platform.instances.records import InstanceView, MemberView, NewMember, PreflightRecord
from gpuaas_platform.instances.rules.actions import (
    Denial,
    InstanceFacts,
    cancel_denial,
    excludes,
    instance_denial,
    member_denial,
    retry_denial,
)
from gpuaas_platform.instances.rules.gates import gate_step
from gpuaas_platform.instances.rules.placements import Machines, check_placements
from gpuaas_platform.instances.service import desires, instances
from gpuaas_platform.instances.service.deploy_checks import find_machines, refuse_errors
from gpuaas_platform.instances.service.preflights import begin_gate
from gpuaas_platform.instances.storage import instances as instance_store
from gpuaas_platform.operations.records import OperationRecord, OperationTarget, OperationView
from gpuaas_platform.operations.service.endings import cancel, follow_members, preempt, take_back
from gpuaas_platform.operations.service.operations import changed, insert, read, require_operation
from gpuaas_platform.operations.storage import bulks as bulk_store
from gpuaas_platform.operations.storage import operations as store

OWNERS_KINDS = frozenset(
    {Kind.DECOMMISSION, Kind.START, Kind.STOP, Kind.UPGRADE, Kind.CONFIGURE, Kind.REMOVE, Kind.REPLACE}
)
"""Kinds that change what the owner wants, or which machines are used: an app does not ask for these itself."""
_WITH_MACHINES = frozenset({Kind.REMOVE, Kind.DECOMMISSION, Kind.REPLACE})
"""Kinds that lock machines, too: before the instance."""
MOST_QUEUED = 100
"""How many operations of one instance may wait."""


async def request_operation(tx: Transaction, caller: Caller, instance_id: str, body: OperationCreate) -> Operation:
    permission = Permission.OPERATION_REQUEST if body.kind in OWNERS_KINDS else Permission.OPERATION_START
    machines = None
    if body.kind in _WITH_MACHINES:
        seen = await instances.require_instance(tx, caller, instance_id, permission)
        machines = await _machines_of(tx, seen, body)
    instance = await instances.require_instance(tx, caller, instance_id, permission, lock=True)
    tx.match(instance)
    if body.kind in INSTALLING_KINDS:
        await require_entitled(tx, caller, instance.tenant_id, instance.app_slug, known=True)
    if body.member_id is None:
        row = await _request_on_instance(tx, instance, body)
    else:
        member = await instance_store.get_member(tx, body.member_id)
        if member is None or member.instance_id != instance_id:
            raise not_found("member", body.member_id)
        row = await request_on_member(tx, instance, member, body.kind, body.input, body.queue, machines)
    await tx.audit("operation.request", row.id, project_id=row.project_id, detail={"kind": body.kind})
    return await read(tx, row.id)


async def _machines_of(tx: Transaction, instance: InstanceView, body: OperationCreate) -> Machines | None:
    """Lock machines, before the instance: the one that is to take over, and those that are about to be resized."""
    if body.kind in {Kind.REMOVE, Kind.DECOMMISSION}:
        await allocation_store.lock_asking(tx, instance.id)
    wanted = body.input.get("allocation_id")
    if body.kind != Kind.REPLACE or not isinstance(wanted, str):
        return None
    return await find_machines(tx, instance.project_id, [wanted], lock=True, instance_id=instance.id)


def _refuse(denial: Denial | None) -> None:
    if denial is not None:
        raise denial.refusal()


async def _request_on_instance(tx: Transaction, instance: InstanceView, body: OperationCreate) -> OperationRecord:
    manifest, kind = manifest_of(instance), body.kind
    under_way = instance.open_operations
    _refuse(instance_denial(InstanceFacts.of(instance, manifest), kind, queued=body.queue and bool(under_way)))
    declared = manifest.instance_operation(kind)
    assert declared is not None
    kept = desires.check_input(tx, instance.tenant_id, declared, body.input)
    input = await desires.check_desire(tx, instance, manifest, kind, kept)
    if kind == Kind.DECOMMISSION:
        # Deletion pre-empts: whatever still runs is cancelled, and its lease is stale from now on.
        if instance.desired_state != DesiredState.DECOMMISSIONED:
            await desires.apply(tx, instance, kind, input)
        await preempt(tx, await store.list_open(tx, instance.id), "the instance is being decommissioned")
        return await insert(tx, instance, declared, None, input)
    if under_way:
        _require_room(instance)
        return await insert(tx, instance, declared, None, input, queued=True)
    undo = await desires.apply(tx, instance, kind, input)
    return await insert(tx, instance, declared, None, input, undo=undo)


def _require_room(instance: InstanceView) -> None:
    if sum(operation.queued for operation in instance.open_operations) >= MOST_QUEUED:
        raise Refusal(Code.ACTION_NOT_ALLOWED, f"{MOST_QUEUED} operations of the instance wait already")


async def request_on_member(
    tx: Transaction,
    instance: InstanceView,
    member: MemberView,
    kind: str,
    input: JsonObject,
    queue: bool,
    machines: Machines | None = None,
    bulk_id: str | None = None,
) -> OperationRecord:
    """Request an operation on a member. The caller holds the lock of the instance."""
    manifest = manifest_of(instance)
    target = OperationTarget(member.id, None)
    in_the_way = [row for row in instance.open_operations if excludes(row, target)]
    _refuse(member_denial(InstanceFacts.of(instance, manifest), member, kind, queued=queue and bool(in_the_way)))
    declared = manifest.member_operation(kind, member.component_key)
    assert declared is not None
    kept = desires.check_input(tx, instance.tenant_id, declared, input)
    if in_the_way and kind == Kind.REMOVE and not queue:
        preempted = [row for row in await store.list_open(tx, instance.id) if excludes(row, target)]
        await preempt(tx, preempted, "the member is being removed")
        for row in preempted:
            # Nobody is to take over any more from one that goes.
            if row.attempt == 0 and row.replacement_member_id not in {None, member.id}:
                await take_back(tx, row)
        in_the_way = []
    if in_the_way:
        _require_room(instance)
    taking_over = None
    if kind == Kind.REPLACE:
        taking_over = await _make_replacement(tx, instance, manifest, member, kept, machines)
    row = await insert(
        tx,
        instance,
        declared,
        member.id,
        kept,
        queued=bool(in_the_way),
        replacement_member_id=taking_over,
        bulk_id=bulk_id,
    )
    if taking_over is not None:
        await follow_members(tx, instance)
    return row


async def _make_replacement(
    tx: Transaction,
    instance: InstanceView,
    manifest: Manifest,
    member: MemberView,
    input: JsonObject,
    machines: Machines | None,
) -> str:
    wanted = input.get("allocation_id")
    if not isinstance(wanted, str) or machines is None:
        detail = "allocation_id is needed: the machine of the member that takes over"
        pointer = "/input/allocation_id"
        raise Refusal(Code.INPUTS_INVALID, detail, errors=[FieldError(pointer=pointer, detail=detail)])
    # The one that goes does not stand in the way of the one that comes; on its own machine it would.
    others = [user for user in machines.live if user.id != member.id or wanted == member.allocation_id]
    placement = Placement(component_key=member.component_key, allocation_id=wanted)
    findings = list(check_placements([placement], manifest, replace(machines, live=others), "/input/allocation_id"))
    refuse_errors([finding.model_copy(update={"pointer": "/input/allocation_id"}) for finding in findings])
    node_id = machines.found[wanted].node_id
    return await make_member(tx, instance, placement, node_id, replaces_member_id=member.id)


async def make_member(
    tx: Transaction,
    instance: InstanceView,
    placement: Placement,
    node_id: str | None,
    *,
    replaces_member_id: str | None = None,
) -> str:
    member = NewMember(
        id=ids.new_id(ids.MEMBER),
        component_key=placement.component_key,
        allocation_id=placement.allocation_id,
        node_id=node_id,
        replaces_member_id=replaces_member_id,
    )
    row = await instance_store.insert_member(tx, instance.id, member)
    await tx.changed(MemberEvent.CREATED, row, project_id=instance.project_id, instance_id=instance.id)
    return row.id


async def _hold(tx: Transaction, caller: Caller, operation_id: str) -> tuple[InstanceView, OperationView]:
    """Lock the instance and the operation, in this order."""
    found = await require_operation(tx, caller, operation_id, Permission.OPERATION_REQUEST)
    if found.preflight_id is not None:
        raise Refusal(Code.INVALID_STATE, "a preflight only looks: leave it alone, and ask for another one")
    assert found.instance_id is not None
    instance = await instance_store.lock(tx, found.instance_id)
    assert instance is not None
    row = await require_operation(tx, caller, operation_id, Permission.OPERATION_REQUEST, lock=True)
    tx.match(row)
    return instance, row


async def retry_operation(tx: Transaction, caller: Caller, operation_id: str) -> Operation:
    instance, row = await _hold(tx, caller, operation_id)
    manifest = manifest_of(instance)
    facts = InstanceFacts.of(instance, manifest)
    _refuse(retry_denial(facts, row))
    if row.kind in INSTALLING_KINDS:
        await require_entitled(tx, caller, row.tenant_id, row.app_slug, known=True)
    together = [row]
    if row.kind == Kind.DEPLOY:
        # Members of a deploy wait for one another: where one failed, the others did, and neither gets on alone.
        failed = await store.lock_failed(tx, instance.id, Kind.ADD)
        together += [joining for joining in failed if retry_denial(facts, joining) is None]
    gate = await _gate_again(tx, instance, manifest, row, together)
    for each in together:
        await _reopen(tx, manifest, each, gate)
    return await read(tx, operation_id)


async def _gate_again(
    tx: Transaction, instance: InstanceView, manifest: Manifest, deploy: OperationView, together: list[OperationView]
) -> PreflightRecord | None:
    """Look at the machines again, where nothing was brought to them yet: later, what the app finds there is its own."""
    begun = any(each.attempt for each in together)
    if deploy.kind != Kind.DEPLOY or deploy.gate_preflight_id is None or begun:
        return None
    gate = await begin_gate(tx, instance, manifest, _deadline(manifest, deploy))
    await store.report_step(tx, deploy, gate_step(gate), attempt=deploy.attempt + 1)
    return gate


async def _reopen(tx: Transaction, manifest: Manifest, row: OperationView, gate: PreflightRecord | None) -> None:
    gate_id = None if gate is None else gate.id
    event = OperationEvent.RETRIED if gate is None else OperationEvent.QUEUED
    message = "" if gate is None else "retried: the app looks at the machines first"
    await changed(tx, await store.reopen(tx, row.id, _deadline(manifest, row), gate_id), event, message)
    if row.bulk_id is not None:
        bulk = await bulk_store.touch(tx, row.bulk_id, ended=False)
        await tx.changed(BulkEvent.REOPENED, bulk, project_id=row.project_id, instance_id=row.instance_id)
    await tx.audit("operation.retry", row.id, project_id=row.project_id)


def _deadline(manifest: Manifest, row: OperationView) -> int:
    declared: OperationKind | None = manifest.operation(row.kind, row.component_key)
    return declared.deadline_seconds if declared is not None else row.deadline_seconds or 1800


async def cancel_operation(tx: Transaction, caller: Caller, operation_id: str) -> Operation:
    """Cancel at once where nobody works on it; else ask its controller to stop at the next boundary between steps."""
    _, row = await _hold(tx, caller, operation_id)
    _refuse(cancel_denial(row))
    if row.state == OperationState.RUNNING and row.lease_live:
        message = f"{row.lease_holder} is asked to stop"
        await changed(tx, await store.request_cancel(tx, operation_id), OperationEvent.CANCEL_REQUESTED, message)
    else:
        await cancel(tx, row, "cancelled", f"called off by {caller.name}", retryable=True)
    await tx.audit("operation.cancel", operation_id, project_id=row.project_id)
    return await read(tx, operation_id)
