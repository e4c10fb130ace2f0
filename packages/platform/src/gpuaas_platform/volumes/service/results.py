"""Volumes as machines come and go, and as node agents report them."""

from collections.abc import Sequence
from datetime import UTC, datetime

from gpuaas_contract.events import AgentStep, AllocationEvent, VolumeEvent
from gpuaas_contract.nodes import Finding, NodeDifference
from gpuaas_contract.nouns import Noun
from gpuaas_contract.volumes import Attachment, AttachmentStatus, VolumeStatus
from gpuaas_platform.allocations.records import AllocationRecord
from gpuaas_platform.allocations.storage import allocations as allocation_store
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.volumes import storage as store
from gpuaas_platform.volumes.records import VolumeRecord, VolumeView
from gpuaas_platform.volumes.service.changes import begin_delete, order_attach, order_delete, tell, tell_both

_LOST = "its node came back without it; what was on it is lost"


async def machine_made(tx: Transaction, allocation_id: str, ok: bool) -> None:
    """Its volumes came with it, or it did not come; what was asked for meanwhile is attached now."""
    for volume in await store.lock_of_allocation(tx, allocation_id):
        waiting = volume.attachment_status == AttachmentStatus.WAITING
        if not ok and not waiting:
            await store.set_attachment(tx, volume.id, allocation_id, AttachmentStatus.WAITING)
            await tell_both(
                tx, volume, allocation_id, AllocationEvent.VOLUME_WAITS, f"the volume {volume.name} waits for it"
            )
        elif ok and waiting:
            await order_attach(tx, volume, allocation_id, volume.path)
        elif ok:
            await _attached(tx, volume, allocation_id, volume.path)


async def _attached(tx: Transaction, volume: VolumeRecord, allocation_id: str, path: str) -> None:
    await store.set_attachment(tx, volume.id, allocation_id, AttachmentStatus.ATTACHED)
    if volume.status == VolumeStatus.PLACED:
        await tell(tx, await store.set_status(tx, volume.id, VolumeStatus.READY), VolumeEvent.READY)
    await tell_both(tx, volume, allocation_id, AllocationEvent.ATTACHED, f"the volume {volume.name} at {path}")


async def begin_release(tx: Transaction, allocation: AllocationRecord, *, delete: bool) -> None:
    """Volumes go from a machine with it, and stay; those that are to go too are noted until it is gone."""
    for volume in await store.lock_of_allocation(tx, allocation.id):
        if delete and volume.machines == 1:
            await store.delete_with_machine(tx, volume.id, allocation.id)
        await store.set_attachment(tx, volume.id, allocation.id, AttachmentStatus.DETACHING)
        await tell_both(
            tx, volume, allocation.id, AllocationEvent.DETACHING, f"the volume {volume.name}, with the machine"
        )


async def machine_gone(tx: Transaction, allocation_id: str) -> None:
    """There is evidence that the machine is not there, so that nothing is attached to it."""
    for volume in await store.lock_of_allocation(tx, allocation_id):
        await store.detach(tx, volume.id, allocation_id)
        goes = volume.delete_volume and volume.machines == 1
        fate = "it is deleted, as asked" if goes else "its data stay"
        await tell_both(tx, volume, allocation_id, AllocationEvent.DETACHED, f"the volume {volume.name}; {fate}")
        if goes:
            await begin_delete(tx, volume)


async def volume_attached(tx: Transaction, volume_id: str, allocation_id: str, ok: bool, message: str) -> None:
    volume, attachment = await _lock(tx, volume_id, allocation_id)
    if volume is None or attachment is None or attachment.status != AttachmentStatus.ATTACHING:
        return
    if ok:
        await _attached(tx, volume, allocation_id, attachment.path)
    else:
        await store.set_attachment(tx, volume_id, allocation_id, AttachmentStatus.ATTACH_FAILED, message)
        await tell_both(
            tx, volume, allocation_id, AllocationEvent.ATTACH_FAILED, f"the volume {volume.name}: {message}"
        )


async def volume_detached(tx: Transaction, volume_id: str, allocation_id: str, ok: bool, message: str) -> None:
    volume, attachment = await _lock(tx, volume_id, allocation_id)
    if volume is None or attachment is None or attachment.status != AttachmentStatus.DETACHING:
        return
    if ok:
        await store.detach(tx, volume_id, allocation_id)
        await tell_both(tx, volume, allocation_id, AllocationEvent.DETACHED, f"the volume {volume.name}")
    else:
        await store.set_attachment(tx, volume_id, allocation_id, AttachmentStatus.DETACH_FAILED, message)
        await tell_both(
            tx, volume, allocation_id, AllocationEvent.DETACH_FAILED, f"the volume {volume.name}: {message}"
        )


async def volume_deleted(tx: Transaction, volume_id: str, ok: bool, message: str) -> None:
    """Note how a deletion ended. The sweeper places what waits for the room: nodes are never locked after volumes."""
    volume = await store.lock(tx, volume_id)
    if volume is None or volume.status != VolumeStatus.DELETING:
        return
    status = VolumeStatus.DELETED if ok else VolumeStatus.DELETE_FAILED
    await tell(tx, await store.set_status(tx, volume_id, status, "" if ok else message), VolumeEvent(status), message)


async def progressed(tx: Transaction, volume_id: str, step: str, message: str) -> None:
    volume = await store.lock(tx, volume_id)
    if volume is not None:
        await tell(tx, volume, AgentStep(Noun.VOLUME, step), message)


async def _lock(tx: Transaction, volume_id: str, allocation_id: str) -> tuple[VolumeView | None, Attachment | None]:
    await allocation_store.lock(tx, allocation_id)
    volume = await store.lock(tx, volume_id)
    return volume, None if volume is None else volume.attachment_to(allocation_id)


async def compare_volumes(tx: Transaction, node_id: str, volume_ids: Sequence[str]) -> list[NodeDifference]:
    """Compare the volumes on a host, when its agent connects, with those that the platform knows there.

    A volume is ready only after its agent had it: a ready one that is not there is lost."""
    rows = {row.id: row for row in await store.lock_of_node(tx, node_id, list(volume_ids))}
    now = datetime.now(UTC)
    found = []
    for row in rows.values():
        if row.node_id != node_id:
            continue
        if row.status == VolumeStatus.READY and row.id not in volume_ids:
            await tell(tx, await store.set_status(tx, row.id, VolumeStatus.LOST, _LOST), VolumeEvent.LOST, _LOST)
            found.append(NodeDifference(volume_id=row.id, finding=Finding.MISSING, message=_LOST, at=now))
        elif row.status == VolumeStatus.DELETED:
            await order_delete(tx, row)
            message = "the volume is deleted; what is there of it goes"
            found.append(NodeDifference(volume_id=row.id, finding=Finding.LEFT_OVER, message=message, at=now))
    for volume_id in volume_ids:
        if volume_id not in rows or rows[volume_id].node_id != node_id:
            message = "no volume of this node; it is left as it is"
            found.append(NodeDifference(volume_id=volume_id, finding=Finding.UNKNOWN, message=message, at=now))
    return found
