"""When an agent connects: the volumes on its host against those that the platform takes it to have."""

from collections.abc import Sequence
from datetime import UTC, datetime

from gpuaas_contract.nodes import Finding, NodeDifference
from gpuaas_contract.volumes import VolumeStatus
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.volumes import storage as store
from gpuaas_platform.volumes.service.changes import order_delete, tell

_LOST = "its node came back without it; what was on it is lost"


async def compare_volumes(tx: Transaction, node_id: str, volume_ids: Sequence[str]) -> list[NodeDifference]:
    """As with machines: one is ready only after its agent had it, so that a ready one that is not there is lost."""
    rows = {row["id"]: row for row in await store.lock_of_node(tx, node_id, list(volume_ids))}
    now = datetime.now(UTC)
    found = []
    for row in rows.values():
        if row["node_id"] != node_id:
            continue
        if row["status"] == VolumeStatus.READY and row["id"] not in volume_ids:
            await tell(tx, await store.set_status(tx, row["id"], VolumeStatus.LOST, _LOST), "lost", _LOST)
            found.append(NodeDifference(volume_id=row["id"], finding=Finding.MISSING, message=_LOST, at=now))
        elif row["status"] == VolumeStatus.DELETED:
            await order_delete(tx, row)
            message = "the volume is deleted; what is there of it goes"
            found.append(NodeDifference(volume_id=row["id"], finding=Finding.LEFT_OVER, message=message, at=now))
    for volume_id in volume_ids:
        if volume_id not in rows or rows[volume_id]["node_id"] != node_id:
            message = "no volume of this node; it is left as it is"
            found.append(NodeDifference(volume_id=volume_id, finding=Finding.UNKNOWN, message=message, at=now))
    return found
