"""Tasks of node agents: given out, their progress, their results."""

from collections.abc import Collection
from dataclasses import dataclass

from gpuaas_contract.agent_link import (
    AttachVolume,
    ClearHost,
    CreateSlice,
    DeleteSlice,
    DeleteVolume,
    DeliverArtifact,
    DetachVolume,
    PrepareHost,
    RenewTrust,
    ResizeSlice,
    RestartHost,
    RestartSlice,
    SetUsers,
    TaskMessage,
    TaskProgress,
    TaskResult,
)
from gpuaas_platform.access.service import grants
from gpuaas_platform.access.service import rotations as ssh_authorities
from gpuaas_platform.allocations.service.placement import AddressPlan
from gpuaas_platform.allocations.storage import allocations as allocation_store
from gpuaas_platform.core.database import Database, Transaction
from gpuaas_platform.nodes import storage as store
from gpuaas_platform.nodes.records import NodeTaskRecord
from gpuaas_platform.nodes.service import deliveries, machine_results, nodes
from gpuaas_platform.volumes.service import results as volume_results

QUEUED = "queued"
_NOT_IN_THE_TIMELINE = (DeliverArtifact, SetUsers, RenewTrust)


@dataclass(frozen=True, slots=True)
class Orders:
    """Messages that the platform has for a node's agent now."""

    welcome: bool
    """False where its identity is worth nothing any more: then there is nothing else to say."""
    rotate: bool
    tasks: list[TaskMessage]
    link_id: str | None = None
    link_address: str = ""
    """The node's newest link, and where it comes from."""


class TaskService:
    def __init__(self, database: Database, plan: AddressPlan) -> None:
        self._database = database
        self._plan = plan

    async def orders(self, node_id: str, told: Collection[str]) -> Orders:
        """But for the tasks that it was told of already."""
        async with self._database.system_transaction() as tx:
            node = await store.get_identity(tx, node_id)
            rows = await store.list_open_tasks(tx, node_id)
        if node is None or node.revoked_at is not None:
            return Orders(welcome=False, rotate=False, tasks=[])
        tasks = [
            TaskMessage(task_id=row.id, correlation_id=row.correlation_id, spec=row.read_spec())
            for row in rows
            if row.id not in told
        ]
        return Orders(
            welcome=True,
            rotate=node.rotation_requested_at is not None,
            tasks=tasks,
            link_id=node.link_id,
            link_address=node.link_address,
        )

    async def progress(self, node_id: str, link_id: str, message: TaskProgress) -> None:
        async with self._database.system_transaction() as tx:
            task = await self._lock(tx, message.task_id, node_id, link_id)
            if task is None:
                return
            tx.correlation_id = task.correlation_id
            if task.allocation_id is None:
                assert task.volume_id is not None, "a task is about a machine or a volume"
                await volume_results.progressed(tx, task.volume_id, message.step, message.message)
            elif not isinstance(task.read_spec(), _NOT_IN_THE_TIMELINE):
                await machine_results.progressed(tx, task.allocation_id, message.step, message.message)

    async def finish(self, node_id: str, link_id: str, result: TaskResult) -> None:
        """Apply a result once: a repeated one, or one of a cancelled task, changes nothing. One that comes by a link
        that was replaced raises LinkReplacedError."""
        async with self._database.system_transaction() as tx:
            task = await self._lock(tx, result.task_id, node_id, link_id)
            if task is None:
                return
            tx.correlation_id = task.correlation_id
            await store.finish_task(tx, result.task_id, "done" if result.ok else "failed")
            await self._apply(tx, task, result)

    async def _lock(self, tx: Transaction, task_id: str, node_id: str, link_id: str) -> NodeTaskRecord | None:
        """A task that is still open. Its machine is locked first: whoever releases one cancels its tasks."""
        seen = await store.get_task(tx, task_id, node_id)
        if seen is not None and seen.allocation_id is not None:
            await allocation_store.lock(tx, seen.allocation_id)
        task = await store.lock_task(tx, task_id, node_id)
        await nodes.require_newest_link(tx, node_id, link_id)
        return task if task is not None and task.state == QUEUED else None

    async def _apply(self, tx: Transaction, task: NodeTaskRecord, result: TaskResult) -> None:
        spec = task.read_spec()
        match spec:
            case CreateSlice() | PrepareHost():
                await machine_results.slice_created(tx, spec.allocation_id, result.ok, result.message)
            case DeleteSlice() | ClearHost():
                await machine_results.slice_deleted(tx, spec.allocation_id, result.ok, result.message, self._plan)
            case RestartSlice() | RestartHost():
                await machine_results.slice_restarted(tx, spec.allocation_id, result.ok, result.message)
            case ResizeSlice():
                await machine_results.slice_resized(tx, spec.allocation_id, result.ok, result.message, self._plan)
            case AttachVolume():
                id = spec.volume.volume_id
                await volume_results.volume_attached(tx, id, spec.allocation_id, result.ok, result.message)
            case DetachVolume():
                id = spec.volume_id
                await volume_results.volume_detached(tx, id, spec.allocation_id, result.ok, result.message)
            case DeleteVolume():
                await volume_results.volume_deleted(tx, spec.volume_id, result.ok, result.message)
            case RenewTrust():
                await ssh_authorities.trust_renewed(tx, spec, result.ok)
            case SetUsers():
                await grants.users_set(tx, result.task_id, result.ok, result.message, result.refused)
            case DeliverArtifact():
                await deliveries.artifact_delivered(tx, result.task_id, result.ok, result.path, result.message)
