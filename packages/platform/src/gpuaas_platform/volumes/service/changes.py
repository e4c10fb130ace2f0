"""Changes of volumes: each is told in the feed, and in the timeline of the machine that it is about."""

from gpuaas_contract.agent_link import AttachVolume, DeleteVolume, DetachVolume, VolumeMount
from gpuaas_contract.base import Resource
from gpuaas_contract.events import AgentStep, AllocationEvent, VolumeEvent
from gpuaas_contract.volumes import AttachmentStatus, VolumeStatus
from gpuaas_platform.allocations.storage import allocations as allocation_store
from gpuaas_platform.allocations.storage.allocations import record
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.nodes import storage as node_store
from gpuaas_platform.volumes import storage as store
from gpuaas_platform.volumes.records import VolumeRecord


def mount_of(volume: VolumeRecord, path: str) -> VolumeMount:
    make = volume.status == VolumeStatus.PLACED
    return VolumeMount(volume_id=volume.id, path=path, size_gib=volume.size_gib, make=make)


async def tell(tx: Transaction, volume: VolumeRecord, event: VolumeEvent | AgentStep, message: str = "") -> None:
    await tx.changed(event, volume, message=message, project_id=volume.project_id)


async def tell_both(
    tx: Transaction, volume: VolumeRecord, allocation_id: str, step: AllocationEvent, message: str
) -> None:
    """Of something that both show."""
    await tell(tx, await store.touch(tx, volume.id), VolumeEvent(step), message)
    await record(tx, await allocation_store.touch(tx, allocation_id), step, message)


async def order_attach(tx: Transaction, volume: VolumeRecord, allocation_id: str, path: str) -> None:
    await store.set_attachment(tx, volume.id, allocation_id, AttachmentStatus.ATTACHING)
    spec = AttachVolume(allocation_id=allocation_id, volume=mount_of(volume, path))
    await _order(tx, volume, allocation_id, spec)
    await tell_both(tx, volume, allocation_id, AllocationEvent.ATTACHING, f"the volume {volume.name} at {path}")


async def order_detach(tx: Transaction, volume: VolumeRecord, allocation_id: str) -> None:
    await store.set_attachment(tx, volume.id, allocation_id, AttachmentStatus.DETACHING)
    await _order(tx, volume, allocation_id, DetachVolume(allocation_id=allocation_id, volume_id=volume.id))
    await tell_both(tx, volume, allocation_id, AllocationEvent.DETACHING, f"the volume {volume.name}")


async def begin_delete(tx: Transaction, volume: VolumeRecord) -> None:
    """One that never had a place is gone at once; any other when its node says so."""
    if volume.node_id is None:
        gone = await store.set_status(tx, volume.id, VolumeStatus.DELETED)
        await tell(tx, gone, VolumeEvent.DELETED, "it was never on a node")
        return
    deleting = await store.set_status(tx, volume.id, VolumeStatus.DELETING)
    await tell(tx, deleting, VolumeEvent.DELETING)
    await order_delete(tx, volume)


async def order_delete(tx: Transaction, volume: VolumeRecord) -> None:
    await _order(tx, volume, None, DeleteVolume(volume_id=volume.id))


async def _order(tx: Transaction, volume: VolumeRecord, allocation_id: str | None, spec: Resource) -> None:
    assert volume.node_id is not None, "a volume without a place is on no node"
    await node_store.insert_task(tx, volume.node_id, spec, allocation_id=allocation_id, volume_id=volume.id)
