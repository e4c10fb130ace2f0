"""Answers of apps to whether a machine of theirs may have another size."""

from gpuaas_contract.agent_link import ResizeSlice
from gpuaas_contract.allocations import Activity, Shape
from gpuaas_contract.events import AllocationEvent
from gpuaas_contract.operations import OperationError, OperationState, ResizeQuestion
from gpuaas_platform.allocations.records import AllocationRecord
from gpuaas_platform.allocations.storage import allocations as store
from gpuaas_platform.allocations.storage.allocations import record
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.nodes.storage import order
from gpuaas_platform.operations.records import OperationRecord
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
