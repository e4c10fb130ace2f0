"""Resizing a machine: at once where nobody lives on it, else when the apps that do have agreed."""

from gpuaas_contract.agent_link import ResizeSlice
from gpuaas_contract.allocations import Activity, Allocation, AllocationResize, Shape
from gpuaas_contract.events import AllocationEvent
from gpuaas_contract.manifest import Manifest
from gpuaas_contract.offers import Offer
from gpuaas_contract.operations import RESIZE, OperationError, OperationState, ResizeQuestion
from gpuaas_contract.problems import Code, FieldError
from gpuaas_platform.allocations.records import AllocationRecord
from gpuaas_platform.allocations.rules import shapes
from gpuaas_platform.allocations.rules.allocations import require_allocation
from gpuaas_platform.allocations.rules.shapes import shortage
from gpuaas_platform.allocations.service.allocations import (
    in_use,
    require_at_rest,
    shown,
    to_model,
)
from gpuaas_platform.allocations.storage import allocations as store
from gpuaas_platform.allocations.storage.allocations import record
from gpuaas_platform.catalogue.service.versions import manifest_of
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.identity.rules.policy import Caller, Permission
from gpuaas_platform.identity.service.quotas import require_quota
from gpuaas_platform.instances.records import MachineUser
from gpuaas_platform.instances.rules.actions import busy_denial
from gpuaas_platform.instances.service.instances import facts_of
from gpuaas_platform.instances.storage import instances as instance_store
from gpuaas_platform.nodes import storage as node_store
from gpuaas_platform.nodes.storage import order
from gpuaas_platform.operations.records import OperationRecord
from gpuaas_platform.operations.service import operations
from gpuaas_platform.operations.storage import operations as operation_store


async def begin_resize(tx: Transaction, row: AllocationRecord, shape: Shape, message: str) -> None:
    changed = await store.begin_activity(tx, row.id, Activity.RESIZING, shape)
    await record(tx, changed, AllocationEvent.RESIZING, message)
    await order(tx, row, ResizeSlice(allocation_id=row.id, shape=shape))


async def answered(
    tx: Transaction, operation: OperationRecord, state: OperationState, error: OperationError | None
) -> list[str]:
    """Begin the resize when the last has agreed, and call it off when the first has refused.

    Answers to what is not asked any more change nothing: the machine was lost, or another app refused. Returns the
    operations that have become pointless."""
    row = await store.lock(tx, ResizeQuestion.model_validate(operation.input).allocation_id)
    if row is None or operation.id not in row.asked_operation_ids:
        return []
    with tx.on_behalf_of(operation.correlation_id):
        if state != OperationState.SUCCEEDED:
            why = state.value if error is None else error.detail
            reason = f"the resize was refused by {operation.app_slug}: {why}"
            refused = await store.end_activity(tx, row.id, row.shape, reason)
            await record(tx, refused, AllocationEvent.RESIZE_REFUSED, reason)
            return [id for id in row.asked_operation_ids if id != operation.id]
        if await operation_store.all_succeeded(tx, list(row.asked_operation_ids)):
            assert row.wanted_shape is not None, "the apps were asked about a size"
            await begin_resize(tx, row, row.wanted_shape, f"{operation.app_slug} agreed")
    return []


async def resize_allocation(tx: Transaction, caller: Caller, allocation_id: str, body: AllocationResize) -> Allocation:
    row = require_allocation(await store.lock(tx, allocation_id), allocation_id, caller, Permission.ALLOCATION_UPDATE)
    tx.match(row)
    shapes.require_support(row, "resize")
    require_at_rest(row)
    old = row.shape
    new = old.model_copy(update=body.model_dump(exclude_none=True, exclude={"force"}))
    if new == old:
        return to_model(row)
    if new.disk_gib < old.disk_gib:
        detail = f"a disk only grows: it has {old.disk_gib} GiB"
        raise Refusal(Code.INVALID_REQUEST, detail, errors=[FieldError(pointer="/disk_gib", detail=detail)])
    await _require_room(tx, row, _growth(old, new))
    members = [] if body.force else await instance_store.list_live_on(tx, [allocation_id])
    await tx.audit_owned("allocation.resize", row, {**new.model_dump(mode="json"), "force": body.force})
    if members:
        await _ask(tx, row, members, old, new)
    else:
        await begin_resize(tx, row, new, f"from {shapes.words(old)} to {shapes.words(new)}")
    return await shown(tx, allocation_id)


def _growth(old: Shape, new: Shape) -> Shape:
    more = {
        name: max(0, getattr(new, name) - getattr(old, name)) for name in ("cpus", "memory_mib", "disk_gib", "gpus")
    }
    return old.model_copy(update=more)


async def _require_room(tx: Transaction, row: AllocationRecord, growth: Shape) -> None:
    if row.project_id is not None:
        await require_quota(tx, row.project_id, shapes.sizes(growth) | {"allocations": 0})
    assert row.node_id is not None, "a machine that can be resized is on a node"
    node = await node_store.lock(tx, row.node_id)
    assert node is not None
    if lacking := shortage(node, growth):
        detail = f"its node has no room for that much more: {', '.join(lacking)}"
        raise Refusal(Code.NO_CAPACITY, detail, context={"lacks": lacking})


async def _ask(tx: Transaction, row: AllocationRecord, members: list[MachineUser], old: Shape, new: Shape) -> None:
    """Ask by one operation for each member; the room is held while they answer."""
    instances = {id: await instance_store.lock(tx, id) for id in sorted({member.instance_id for member in members})}
    asked = []
    question = ResizeQuestion(allocation_id=row.id, present_shape=old, wanted_shape=new).model_dump(mode="json")
    for member in members:
        instance = instances[member.instance_id]
        assert instance is not None
        manifest = manifest_of(instance)
        declared = manifest.member_operation(RESIZE, member.component_key)
        if declared is None:
            raise _cannot_ask(row, members, manifest)
        if (busy := busy_denial(facts_of(instance), member.id)) is not None:
            raise busy.refusal()
        asked.append((await operations.insert(tx, instance, declared, member.id, question)).id)
    changed = await store.begin_activity(tx, row.id, Activity.ASKING, new, asked)
    names = ", ".join(sorted({member.instance_name for member in members}))
    await record(tx, changed, AllocationEvent.ASKING, f"{names}: from {shapes.words(old)} to {shapes.words(new)}?")


def _cannot_ask(row: AllocationRecord, members: list[MachineUser], manifest: Manifest) -> Refusal:
    advice = f"{manifest.slug} cannot be asked about a resize: do it with force, or decommission that first"
    title = "Resize it with force, without asking"
    force = Offer.RESIZE_ALLOCATION.action("resize", title, allocation_id=row.id)
    return in_use(members, advice, force)
