"""The app's own copy of each machine's baseline: stored at the install, restored where the machine lost its own."""

from collections.abc import Iterable
from dataclasses import replace

from gpuaas_contract.instances import Member
from gpuaas_sdk import Machine, MachineUnreachableError, OperationContext
from slurm_app.phases import BASELINE
from slurm_app.scope import Scope
from slurm_app.slurm.owned import NEEDED_PARTS, RECORD
from slurm_app.store import Store


async def store_records(operation: OperationContext, store: Store, machines: tuple[Machine, ...]) -> None:
    instance_id = operation.instance_id
    for machine in machines:
        if await store.baseline_of(machine.allocation_id, instance_id) is None:
            await store.remember_baseline(machine.allocation_id, instance_id, await RECORD.read_copy(machine))


async def leaving_scope(operation: OperationContext, scope: Scope, members: Iterable[Member]) -> Scope:
    """Say of which machines no member ever came to the step that records the baseline: those have lost no record, and a
    deploy that was refused before that step is taken apart without one."""
    before = await operation.members_before(BASELINE.key)
    came = {member.allocation_id for member in members if member.id not in before}
    return replace(scope, never_came=frozenset(m.allocation_id for m in scope.machines) - came)


async def restore_records(operation: OperationContext, store: Store, scope: Scope) -> None:
    """Restore the record where it is lost: without it nobody could tell what is ours, and nothing would be removed."""
    for machine in scope.prepared:
        record = await store.baseline_of(machine.allocation_id, operation.instance_id)
        if record is None:
            continue
        try:
            await RECORD.ensure_restored(machine, record, needed=NEEDED_PARTS)
        except MachineUnreachableError:
            # The teardown itself says which machines do not answer.
            continue
