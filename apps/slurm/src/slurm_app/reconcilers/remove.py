"""remove: one worker leaves, the cluster goes on."""

from gpuaas_contract.base import JsonObject
from gpuaas_contract.instances import Member, MemberStatus
from gpuaas_sdk import OperationContext, prove_removal, run_phases
from slurm_app.access_notes import refresh_access_notes
from slurm_app.decommission_phases import PROVE, REMOVE_PHASES, read_worker_receipts
from slurm_app.reconcilers.cluster import Cluster
from slurm_app.reconcilers.drain import drain_member, known_node
from slurm_app.reconcilers.records import leaving_scope, restore_records
from slurm_app.store import Store


async def reconcile(operation: OperationContext, store: Store) -> JsonObject:
    cluster = await Cluster.read(operation, store)
    member = cluster.member(operation.operation.member_id)
    removed = await remove_worker(operation, store, cluster, member)
    # With the end of the operation, not before: a successor must still find what there is to take apart.
    operation.statuses_on_success[member.id] = MemberStatus.REMOVED
    return removed


async def remove_worker(operation: OperationContext, store: Store, cluster: Cluster, member: Member) -> JsonObject:
    """Drain first: as long as it is not known that nothing runs there, nothing is stopped."""
    if host := await known_node(store, member):
        await drain_member(operation, cluster, member, host)
    await operation.report_member(member.id, status=MemberStatus.REMOVING)
    scope = cluster.scope(operation, [member], targets=[member], leaving=True)
    scope = await leaving_scope(operation, scope, (cluster.controller, *cluster.workers))
    await restore_records(operation, store, scope)
    await run_phases(operation, scope, REMOVE_PHASES)
    async with operation.step(*PROVE) as step:
        step.evidence = removed = prove_removal([member], await read_worker_receipts(scope))
    await refresh_access_notes(operation, cluster)
    if scope.removal_from(scope.prepared[0]).whole_machine:
        await store.forget(cluster.instance.id, member.allocation_id, [member.id])
    return removed
