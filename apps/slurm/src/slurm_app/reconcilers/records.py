"""The app's own copy of each machine's baseline: stored at the install, restored where the machine lost its own."""

from gpuaas_sdk import Machine, MachineUnreachableError, OperationContext
from slurm_app.scope import Scope
from slurm_app.slurm.record import ensure_record_restored, read_record
from slurm_app.store import Store


async def store_records(operation: OperationContext, store: Store, machines: tuple[Machine, ...]) -> None:
    instance_id = operation.instance_id
    for machine in machines:
        if await store.baseline_of(machine.allocation_id, instance_id) is None:
            await store.remember_baseline(machine.allocation_id, instance_id, await read_record(machine))


async def restore_records(operation: OperationContext, store: Store, scope: Scope) -> None:
    """Restore the record where it is lost: without it nobody could tell what is ours, and nothing would be removed."""
    for machine in scope.prepared:
        record = await store.baseline_of(machine.allocation_id, operation.instance_id)
        if record is None:
            continue
        try:
            await ensure_record_restored(machine, record)
        except MachineUnreachableError:
            # The teardown itself says which machines do not answer.
            continue
