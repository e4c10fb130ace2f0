"""When an agent connects: what it has on its host against what the platform takes it to have."""

from collections.abc import Sequence
from datetime import UTC, datetime

from gpuaas_contract.agent_link import SliceReport
from gpuaas_contract.allocations import AllocationStatus
from gpuaas_contract.events import AllocationEvent, NodeEvent
from gpuaas_contract.nodes import Finding, NodeDifference
from gpuaas_contract.usage import UsageKind
from gpuaas_platform.allocations.records import AllocationRecord
from gpuaas_platform.allocations.rules.shapes import removal
from gpuaas_platform.allocations.storage import allocations as allocation_store
from gpuaas_platform.allocations.storage import usage as usage_store
from gpuaas_platform.allocations.storage.allocations import record
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.nodes import storage as store
from gpuaas_platform.nodes.storage import order
from gpuaas_platform.volumes.service.results import compare_volumes, machine_gone

_LOST = "its node came back without the machine; it is not charged any more"


async def compare(
    tx: Transaction, node_id: str, slices: Sequence[SliceReport], volume_ids: Sequence[str] | None
) -> None:
    """An allocation is active only after its agent said that the machine is finished, and the agent read what it
    has after all that it said before: an active one that is not there now is lost. What is released and still
    there is deleted; what nobody knows is left to people."""
    there = {report.allocation_id: report for report in slices}
    rows = {row.id: row for row in await allocation_store.list_of_node(tx, node_id, list(there))}
    # Before the volumes, as everywhere.
    await store.lock(tx, node_id)
    now = datetime.now(UTC)
    found = []
    for row in rows.values():
        report = there.get(row.id)
        if row.node_id != node_id:
            continue
        if row.status == AllocationStatus.ACTIVE and (report is None or not report.finished):
            await _lose(tx, row)
            found.append(NodeDifference(allocation_id=row.id, finding=Finding.MISSING, message=_LOST, at=now))
        elif row.status == AllocationStatus.RELEASED and report is not None:
            await order(tx, row, removal(row))
            message = "its allocation is released; the machine is deleted"
            found.append(NodeDifference(allocation_id=row.id, finding=Finding.LEFT_OVER, message=message, at=now))
    for allocation_id in there:
        if allocation_id not in rows or rows[allocation_id].node_id != node_id:
            message = "no allocation of this node has this machine; it is left as it is"
            found.append(NodeDifference(allocation_id=allocation_id, finding=Finding.UNKNOWN, message=message, at=now))
    if volume_ids is not None:
        found += await compare_volumes(tx, node_id, volume_ids)
    changed = await store.set_differences(tx, node_id, found)
    if changed is not None:
        await tx.changed(NodeEvent.COMPARED, changed, message=f"{len(found)} differences")


async def _lose(tx: Transaction, row: AllocationRecord) -> None:
    await store.cancel_tasks(tx, row.id)
    await usage_store.end(tx, UsageKind.CHARGED, row.id)
    lost = await allocation_store.set_status(tx, row.id, AllocationStatus.FAILED, _LOST)
    await record(tx, lost, AllocationEvent.LOST, _LOST)
    await machine_gone(tx, row.id)
