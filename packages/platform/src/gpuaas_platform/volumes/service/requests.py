"""Volumes: asked for, looked at, attached, detached, tried again, deleted."""

from gpuaas_contract import ids
from gpuaas_contract.allocations import AllocationStatus, Shape
from gpuaas_contract.events import AllocationEvent, VolumeEvent
from gpuaas_contract.nodes import NodeStatus
from gpuaas_contract.offers import Offer
from gpuaas_contract.problems import AllowedAction, Code
from gpuaas_contract.volumes import (
    Attachment,
    AttachmentStatus,
    Volume,
    VolumeAttach,
    VolumeCreate,
    VolumeDetach,
    VolumePage,
    VolumeStatus,
)
from gpuaas_platform.allocations.records import AllocationView
from gpuaas_platform.allocations.rules import shapes
from gpuaas_platform.allocations.rules.allocations import require_allocation
from gpuaas_platform.allocations.rules.shapes import shortage
from gpuaas_platform.allocations.storage import allocations as allocation_store
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import Refusal, not_found
from gpuaas_platform.core.pages import cut_page, decode_cursor
from gpuaas_platform.core.records import to_wire
from gpuaas_platform.identity.rules.policy import Caller, Permission, Scope
from gpuaas_platform.identity.service.quotas import require_quota
from gpuaas_platform.identity.service.tenants import require_project, visible_projects
from gpuaas_platform.nodes import storage as node_store
from gpuaas_platform.volumes import storage as store
from gpuaas_platform.volumes.records import VolumeRecord, VolumeView
from gpuaas_platform.volumes.service.changes import (
    begin_delete,
    order_attach,
    order_delete,
    order_detach,
    tell,
    tell_both,
)
from gpuaas_platform.volumes.service.placement import USABLE, check_free_path

_FAILED = {AttachmentStatus.ATTACH_FAILED, AttachmentStatus.DETACH_FAILED}
_OPEN = {AllocationStatus.REQUESTED, AllocationStatus.PROVISIONING, AllocationStatus.ACTIVE}


def _to_model(row: VolumeView) -> Volume:
    return to_wire(Volume, row, allowed_actions=_actions(row))


def _actions(row: VolumeView) -> list[AllowedAction]:
    offers = []
    if row.status in USABLE:
        offers += [(Offer.ATTACH_VOLUME, "attach", "Attach it to a machine")]
    if row.attachments:
        offers += [(Offer.DETACH_VOLUME, "detach", "Detach it from a machine")]
    if row.status == VolumeStatus.DELETE_FAILED or _failed(row):
        offers += [(Offer.RETRY_VOLUME, "retry", "Try again what failed")]
    if row.status in {*USABLE, VolumeStatus.LOST} and not row.attachments:
        offers += [(Offer.DELETE_VOLUME, "delete", "Delete it with all that is on it")]
    return [offer.action(name, title, volume_id=row.id) for offer, name, title in offers]


def _failed(row: VolumeView) -> list[Attachment]:
    return [item for item in row.attachments if item.status in _FAILED]


async def _require_volume(
    tx: Transaction, caller: Caller, volume_id: str, permission: Permission, *, lock: bool = False
) -> VolumeView:
    row = await (store.lock if lock else store.get)(tx, volume_id)
    if row is None:
        raise not_found("volume", volume_id)
    caller.require(permission, Scope(row.tenant_id, row.project_id), "volume", volume_id)
    return row


async def _lock_both(
    tx: Transaction, caller: Caller, volume_id: str, allocation_id: str
) -> tuple[VolumeView, AllocationView]:
    """The volume and a machine of its project: the machine is locked first, then its node, then the volume."""
    seen = await _require_volume(tx, caller, volume_id, Permission.VOLUME_UPDATE)
    machine = require_allocation(
        await allocation_store.lock(tx, allocation_id), allocation_id, caller, Permission.ALLOCATION_UPDATE
    )
    if machine.project_id != seen.project_id:
        raise not_found("allocation", allocation_id)
    if machine.node_id is not None:
        await node_store.lock(tx, machine.node_id)
    volume = await _require_volume(tx, caller, volume_id, Permission.VOLUME_UPDATE, lock=True)
    tx.match(volume)
    return volume, machine


async def _shown(tx: Transaction, volume_id: str) -> Volume:
    row = await store.get(tx, volume_id)
    assert row is not None
    return _to_model(row)


async def create_volume(tx: Transaction, caller: Caller, body: VolumeCreate) -> Volume:
    await require_project(tx, caller, body.project_id, Permission.VOLUME_CREATE)
    await require_quota(tx, body.project_id, {"disk_gib": body.size_gib})
    row = await store.insert(tx, ids.new_id(ids.VOLUME), body.project_id, body.name, body.size_gib)
    if row is None:
        raise Refusal(Code.NAME_TAKEN, f"the project has a volume {body.name!r} already")
    await tx.audit("volume.create", row.id, project_id=body.project_id, detail={"size_gib": body.size_gib})
    await tell(tx, row, VolumeEvent.CREATED, f"{body.size_gib} GiB; it gets its place with its first machine")
    return await _shown(tx, row.id)


async def get_volume(tx: Transaction, caller: Caller, volume_id: str) -> Volume:
    return _to_model(await _require_volume(tx, caller, volume_id, Permission.VOLUME_READ))


async def list_volumes(
    tx: Transaction,
    caller: Caller,
    project_id: str | None,
    status: VolumeStatus | None,
    name: str | None,
    cursor: str | None,
    limit: int,
) -> VolumePage:
    projects = await visible_projects(tx, caller, project_id, Permission.VOLUME_READ)
    rows = await store.list_matching(tx, projects, status, name, decode_cursor(cursor), limit + 1)
    rows, after = cut_page(rows, limit)
    return VolumePage(items=[_to_model(row) for row in rows], next_cursor=after)


async def attach_volume(tx: Transaction, caller: Caller, volume_id: str, body: VolumeAttach) -> Volume:
    volume, machine = await _lock_both(tx, caller, volume_id, body.allocation_id)
    if volume.status not in USABLE:
        raise Refusal(Code.INVALID_STATE, f"the volume is {volume.status}")
    if machine.status not in _OPEN:
        raise Refusal(Code.INVALID_STATE, f"the allocation is {machine.status}")
    shapes.require_support(machine, "attach")
    if volume.attachment_to(machine.id) is not None:
        raise Refusal(Code.INVALID_STATE, f"the machine {machine.name} has this volume already")
    check_free_path(body.path, [item.path for item in machine.volumes], "/path")
    placed = volume if machine.node_id is None else await _bring_together(tx, volume, machine.node_id)
    await store.attach(tx, volume_id, machine.id, body.path, AttachmentStatus.WAITING)
    detail = body.model_dump()
    await tx.audit("volume.attach", volume_id, project_id=volume.project_id, detail=detail)
    if machine.status == AllocationStatus.ACTIVE:
        await order_attach(tx, placed, machine.id, body.path)
    else:
        message = f"the volume {volume.name} at {body.path}, as soon as the machine is there"
        await tell_both(tx, volume, machine.id, AllocationEvent.VOLUME_WANTED, message)
    return await _shown(tx, volume_id)


async def _bring_together(tx: Transaction, volume: VolumeView, node_id: str) -> VolumeRecord:
    """A volume without a place gets one next to the machine; machines do not move any more."""
    if volume.node_id == node_id:
        return volume
    node = await node_store.get(tx, node_id)
    assert node is not None
    if volume.node_id is not None:
        detail = f"the volume {volume.name} is on node {volume.node_name}, the machine on {node.name}"
        raise Refusal(Code.INVALID_STATE, detail)
    if node.intent != NodeStatus.READY:
        raise Refusal(Code.NO_CAPACITY, f"the machine's node is {node.intent} and takes nothing new")
    nothing = Shape.model_construct(cpus=0, memory_mib=0, disk_gib=volume.size_gib, gpus=0)
    if lacking := shortage(node, nothing):
        detail = f"the machine's node has no room for the volume: {', '.join(lacking)}"
        raise Refusal(Code.NO_CAPACITY, detail, context={"lacks": lacking})
    placed = await store.place(tx, volume.id, node_id)
    await tell(tx, placed, VolumeEvent.PLACED, f"on node {node.name}")
    return placed


async def detach_volume(tx: Transaction, caller: Caller, volume_id: str, body: VolumeDetach) -> Volume:
    volume, machine = await _lock_both(tx, caller, volume_id, body.allocation_id)
    attachment = volume.attachment_to(machine.id)
    if attachment is None:
        raise Refusal(Code.INVALID_STATE, f"the volume is not attached to {machine.name}")
    if attachment.status in {AttachmentStatus.ATTACHING, AttachmentStatus.DETACHING}:
        raise Refusal(Code.INVALID_STATE, f"the volume is {attachment.status} there; wait until that is over")
    await tx.audit("volume.detach", volume_id, project_id=volume.project_id, detail=body.model_dump())
    if attachment.status == AttachmentStatus.WAITING:
        await store.detach(tx, volume_id, machine.id)
        await tell_both(
            tx, volume, machine.id, AllocationEvent.DETACHED, f"the volume {volume.name}, which was not there yet"
        )
    else:
        await order_detach(tx, volume, machine.id)
    return await _shown(tx, volume_id)


async def retry_volume(tx: Transaction, caller: Caller, volume_id: str) -> Volume:
    """All that failed about it: attachments, detachments, its deletion."""
    seen = await _require_volume(tx, caller, volume_id, Permission.VOLUME_UPDATE)
    machines = [await allocation_store.lock(tx, item.allocation_id) for item in _failed(seen)]
    active = {machine.id for machine in machines if machine and machine.status == AllocationStatus.ACTIVE}
    volume = await _require_volume(tx, caller, volume_id, Permission.VOLUME_UPDATE, lock=True)
    tx.match(volume)
    again = [item for item in _failed(volume) if item.allocation_id in active]
    if volume.status != VolumeStatus.DELETE_FAILED and not again:
        raise Refusal(Code.INVALID_STATE, f"the volume is {volume.status}; there is nothing to try again")
    await tx.audit("volume.retry", volume_id, project_id=volume.project_id)
    for item in again:
        if item.status == AttachmentStatus.ATTACH_FAILED:
            await order_attach(tx, volume, item.allocation_id, item.path)
        else:
            await order_detach(tx, volume, item.allocation_id)
    if volume.status == VolumeStatus.DELETE_FAILED:
        await tell(
            tx, await store.set_status(tx, volume_id, VolumeStatus.DELETING), VolumeEvent.DELETING, "tried again"
        )
        await order_delete(tx, volume)
    return await _shown(tx, volume_id)


async def delete_volume(tx: Transaction, caller: Caller, volume_id: str) -> Volume:
    volume = await _require_volume(tx, caller, volume_id, Permission.VOLUME_DELETE, lock=True)
    tx.match(volume)
    if volume.attachments:
        raise _in_use(volume)
    if volume.status not in {*USABLE, VolumeStatus.LOST}:
        raise Refusal(Code.INVALID_STATE, f"the volume is {volume.status}")
    detail = {"name": volume.name}
    await tx.audit("volume.delete", volume_id, project_id=volume.project_id, detail=detail)
    await begin_delete(tx, volume)
    return await _shown(tx, volume_id)


def _in_use(volume: VolumeView) -> Refusal:
    machines = volume.attachments
    names = ", ".join(item.allocation_name for item in machines)
    return Refusal(
        Code.VOLUME_IN_USE,
        f"the volume is attached to {names}; detach it first",
        context={"allocation_ids": [item.allocation_id for item in machines]},
        allowed_actions=[
            Offer.DETACH_VOLUME.action("detach", f"Detach it from {item.allocation_name}", volume_id=volume.id)
            for item in machines
        ],
    )
