"""decommission: everything that the app brought is removed, and the receipt proves it."""

from gpuaas_contract.base import JsonObject
from gpuaas_contract.instances import Condition, ConditionStatus, MemberStatus
from gpuaas_sdk import OperationContext, prove_removal, run_phases
from slurm_app.decommission_phases import DECOMMISSION_PHASES, PROVE, read_receipts
from slurm_app.reconcilers.cluster import Cluster
from slurm_app.reconcilers.records import leaving_scope, restore_records
from slurm_app.store import Store


async def reconcile(operation: OperationContext, store: Store) -> JsonObject:
    cluster = await Cluster.read(operation, store)
    members = [cluster.controller, *cluster.workers]
    await _report_decommissioning(operation, cluster)
    for member in members:
        await operation.report_member(member.id, status=MemberStatus.REMOVING)
    scope = await leaving_scope(operation, cluster.scope(operation, cluster.workers, leaving=True), members)
    await restore_records(operation, store, scope)
    await run_phases(operation, scope, DECOMMISSION_PHASES)
    async with operation.step(*PROVE) as step:
        step.evidence = removed = prove_removal(members, await read_receipts(scope))
    # With the end of the operation, not before: a successor must still find what there is to take apart.
    for machine in scope.machines:
        here = [member.id for member in members if member.allocation_id == machine.allocation_id]
        await store.forget(cluster.instance.id, machine.allocation_id, here)
    operation.statuses_on_success.update({member.id: MemberStatus.REMOVED for member in members})
    return removed


async def _report_decommissioning(operation: OperationContext, cluster: Cluster) -> None:
    """Report that nobody should use it from now on, and take back the instructions how to."""
    generation = cluster.instance.generation
    gone = [
        Condition(type=kind, status=ConditionStatus.FALSE, reason="Decommissioning", observed_generation=generation)
        for kind in ("Ready", "InSync")
    ]
    await operation.report_instance(conditions=gone, access_notes=[])
