"""What node agents say about their tasks."""

from gpuaas_contract.agent_link import (
    CreateSlice,
    DeleteSlice,
    TaskMessage,
    TaskProgress,
    TaskResult,
    task_spec_adapter,
)
from gpuaas_platform.services import access, allocations
from gpuaas_platform.storage import nodes as store
from gpuaas_platform.storage.database import Database

QUEUED = "queued"


class TaskService:
    def __init__(self, database: Database, plan: allocations.AddressPlan) -> None:
        self._database = database
        self._plan = plan

    async def open_tasks(self, node_id: str) -> list[TaskMessage]:
        async with self._database.system_transaction() as tx:
            rows = await store.list_open_tasks(tx, node_id)
        return [
            TaskMessage(
                task_id=row["id"],
                correlation_id=row["correlation_id"],
                spec=task_spec_adapter.validate_python(row["spec"]),
            )
            for row in rows
        ]

    async def progress(self, node_id: str, message: TaskProgress) -> None:
        async with self._database.system_transaction() as tx:
            task = await store.lock_task(tx, message.task_id, node_id)
            if task is None or task["state"] != QUEUED:
                return
            tx.correlation_id = task["correlation_id"]
            if isinstance(task_spec_adapter.validate_python(task["spec"]), CreateSlice | DeleteSlice):
                await allocations.slice_progressed(tx, task["allocation_id"], message.step, message.message)

    async def finish(self, node_id: str, result: TaskResult) -> None:
        """Apply a result once: a repeated one, or one of a cancelled task, changes nothing."""
        async with self._database.system_transaction() as tx:
            task = await store.lock_task(tx, result.task_id, node_id)
            if task is None or task["state"] != QUEUED:
                return
            tx.correlation_id = task["correlation_id"]
            await store.finish_task(tx, result.task_id, "done" if result.ok else "failed")
            spec = task_spec_adapter.validate_python(task["spec"])
            if isinstance(spec, CreateSlice):
                await allocations.slice_created(tx, spec.allocation_id, result.ok, result.message)
            elif isinstance(spec, DeleteSlice):
                await allocations.slice_deleted(tx, spec.allocation_id, result.ok, result.message, self._plan)
            else:
                await access.artifact_delivered(tx, result.task_id, result.ok, result.path, result.message)
