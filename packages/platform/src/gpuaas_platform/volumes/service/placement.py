"""Where volumes are: one gets its place with its first machine, and from then on machines come to where it is."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpuaas_contract.agent_link import VolumeMount
from gpuaas_contract.allocations import Shape
from gpuaas_contract.events import AllocationEvent, VolumeEvent
from gpuaas_contract.problems import Code, FieldError
from gpuaas_contract.volumes import AttachmentStatus, VolumeAt, VolumeStatus
from gpuaas_platform.allocations.records import AllocationRecord, AllocationView
from gpuaas_platform.allocations.rules import shapes
from gpuaas_platform.allocations.storage.allocations import record
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import Refusal, not_found
from gpuaas_platform.identity.rules.policy import Caller, Permission, Scope
from gpuaas_platform.volumes import storage as store
from gpuaas_platform.volumes.records import AttachedVolume
from gpuaas_platform.volumes.service.changes import mount_of, tell, tell_both

USABLE = {VolumeStatus.UNPLACED, VolumeStatus.PLACED, VolumeStatus.READY}


@dataclass(frozen=True, slots=True)
class WantedVolumes:
    """The volumes of one request for a machine."""

    rows: list[AttachedVolume]

    def room(self, shape: Shape) -> Shape:
        """Add the disk of volumes that would be made there to what a node must have free."""
        more = sum(row.size_gib for row in self.rows if row.node_id is None)
        return shape.model_copy(update={"disk_gib": shape.disk_gib + more})

    def places(self) -> list[str] | None:
        """The nodes where all of them are; none where one is here and another there, None where any will do."""
        placed = {row.node_id for row in self.rows if row.node_id is not None}
        return None if not placed else list(placed) if len(placed) == 1 else []

    def bond(self) -> str:
        """Why not any node will do; empty where any does."""
        placed = [row for row in self.rows if row.node_id is not None]
        words = [f"the volume {row.name} is on node {row.node_name}" for row in placed]
        return " and ".join(words)

    async def take_place(self, tx: Transaction, node_id: str) -> None:
        for row in self.rows:
            if row.node_id is None:
                await tell(tx, await store.place(tx, row.id, node_id), VolumeEvent.PLACED)


async def read_wanted(tx: Transaction, allocation: AllocationView) -> WantedVolumes:
    """As they seem to be: lock the node, then them, and look again."""
    return WantedVolumes(await store.list_of_allocation(tx, allocation.id) if allocation.volumes else [])


async def lock_wanted(tx: Transaction, allocation: AllocationView) -> WantedVolumes:
    """Ask while the node is locked already, never before."""
    return WantedVolumes(await store.lock_of_allocation(tx, allocation.id) if allocation.volumes else [])


async def mounts_of_new_machine(tx: Transaction, allocation_id: str) -> list[VolumeMount]:
    """List the volumes that the machine has from its first start."""
    mounts = []
    for row in await store.lock_of_allocation(tx, allocation_id):
        await store.set_attachment(tx, row.id, allocation_id, AttachmentStatus.ATTACHING)
        await tell_both(tx, row, allocation_id, AllocationEvent.ATTACHING, f"the volume {row.name} at {row.path}")
        mounts.append(mount_of(row, row.path))
    return mounts


async def attach_at_create(
    tx: Transaction, caller: Caller, allocation: AllocationRecord, wanted: Sequence[VolumeAt]
) -> None:
    """Without locks on the volumes, since the nodes come first; `confirm_at_create` looks again at the end."""
    if wanted:
        shapes.require_support(allocation, "attach")
    for number, item in enumerate(wanted):
        volume = await store.get(tx, item.volume_id)
        if volume is None or volume.project_id != allocation.project_id:
            raise not_found("volume", item.volume_id)
        scope = Scope(tenant_id=volume.tenant_id, project_id=volume.project_id)
        caller.require(Permission.VOLUME_UPDATE, scope, "volume", item.volume_id)
        if volume.status not in USABLE:
            raise Refusal(Code.INVALID_STATE, f"the volume {volume.name} is {volume.status}")
        check_free_path(item.path, [other.path for other in wanted[:number]], f"/volumes/{number}/path")
        if not await store.attach(tx, item.volume_id, allocation.id, item.path, AttachmentStatus.WAITING):
            raise Refusal(Code.INVALID_REQUEST, f"the volume {volume.name} is given twice")
        await record(
            tx, allocation, AllocationEvent.VOLUME_WANTED, f"the volume {volume.name} at {item.path}, from the start"
        )


async def confirm_at_create(tx: Transaction, allocation_ids: Sequence[str]) -> None:
    """All of the new machines have the same volumes."""
    for row in await store.lock_of_allocation(tx, allocation_ids[0]):
        if row.status not in USABLE:
            raise Refusal(Code.INVALID_STATE, f"the volume {row.name} is {row.status}")
        message = f"at {row.path} of {len(allocation_ids)} new machines"
        await tell(tx, await store.touch(tx, row.id), VolumeEvent.WANTED, message)
    rows = await store.lock_of_allocation(tx, allocation_ids[0])
    if len({row.node_id for row in rows} - {None}) > 1:
        detail = f"no machine can have all of these volumes: {WantedVolumes(rows).bond()}"
        raise Refusal(Code.INVALID_STATE, detail)


def check_free_path(path: str, taken: Sequence[str], pointer: str) -> None:
    """No volume in the place of another one, nor inside of one."""
    for other in taken:
        if f"{path}/".startswith(f"{other}/") or f"{other}/".startswith(f"{path}/"):
            detail = f"{path} is at or inside the path of another volume of this machine, {other}, or around it"
            raise Refusal(Code.INVALID_REQUEST, detail, errors=[FieldError(pointer=pointer, detail=detail)])
