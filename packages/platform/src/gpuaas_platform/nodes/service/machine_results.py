"""Results of tasks about machines, applied to their allocations."""

from gpuaas_contract.allocations import Activity, AllocationStatus
from gpuaas_contract.events import AgentStep, AllocationEvent
from gpuaas_contract.nouns import Noun
from gpuaas_contract.usage import UsageKind
from gpuaas_platform.access.service.rotations import catch_up
from gpuaas_platform.allocations.service.placement import AddressPlan, place_waiting
from gpuaas_platform.allocations.storage import allocations as store
from gpuaas_platform.allocations.storage import usage as usage_store
from gpuaas_platform.allocations.storage.allocations import record
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.volumes.service.results import machine_gone, machine_made


async def progressed(tx: Transaction, allocation_id: str, step: str, message: str) -> None:
    row = await store.lock(tx, allocation_id)
    if row is not None:
        await record(tx, row, AgentStep(Noun.ALLOCATION, step), message)


async def slice_created(tx: Transaction, allocation_id: str, ok: bool, message: str) -> None:
    row = await store.lock(tx, allocation_id)
    if row is None or row.status != AllocationStatus.PROVISIONING:
        return
    status = AllocationStatus.ACTIVE if ok else AllocationStatus.FAILED
    changed = await store.set_status(tx, allocation_id, status, "" if ok else message)
    if ok:
        await usage_store.begin(tx, UsageKind.CHARGED, changed)
        await catch_up(tx, changed)
    await machine_made(tx, allocation_id, ok)
    await record(tx, changed, AllocationEvent(status), message if ok else f"{message}; it is not charged")


async def slice_deleted(tx: Transaction, allocation_id: str, ok: bool, message: str, plan: AddressPlan) -> None:
    row = await store.lock(tx, allocation_id)
    if row is None or row.status != AllocationStatus.RELEASING:
        return
    status = AllocationStatus.RELEASED if ok else AllocationStatus.RELEASE_FAILED
    changed = await store.set_status(tx, allocation_id, status, "" if ok else message)
    if ok:
        await usage_store.end(tx, UsageKind.OCCUPIED, allocation_id)
    await record(tx, changed, AllocationEvent(status), message if ok else f"{message}; it is not charged any more")
    if ok:
        # Nodes before volumes, as everywhere.
        await place_waiting(tx, plan)
        await machine_gone(tx, allocation_id)


async def slice_restarted(tx: Transaction, allocation_id: str, ok: bool, message: str) -> None:
    row = await store.lock(tx, allocation_id)
    if row is None or row.activity != Activity.RESTARTING:
        return
    reason = "" if ok else f"the restart failed: {message}"
    changed = await store.end_activity(tx, allocation_id, row.shape, reason)
    await record(tx, changed, AllocationEvent.RESTARTED if ok else AllocationEvent.RESTART_FAILED, message)


async def slice_resized(tx: Transaction, allocation_id: str, ok: bool, message: str, plan: AddressPlan) -> None:
    row = await store.lock(tx, allocation_id)
    if row is None or row.activity != Activity.RESIZING:
        return
    shape = row.wanted_shape if ok else row.shape
    assert shape is not None, "a machine is resized to a size"
    reason = "" if ok else f"the resize failed, the size is as before: {message}"
    changed = await store.end_activity(tx, allocation_id, shape, reason)
    if ok:
        await usage_store.reshape(tx, allocation_id, shape)
    await record(tx, changed, AllocationEvent.RESIZED if ok else AllocationEvent.RESIZE_FAILED, message)
    await place_waiting(tx, plan)
