"""replace: another machine takes over from a worker. The new one works before the old one is let go."""

from gpuaas_contract.base import JsonObject
from gpuaas_contract.instances import MemberStatus
from gpuaas_sdk import OperationContext, OperationFailed, member_in_work
from slurm_app.reconcilers import workers
from slurm_app.reconcilers.cluster import Cluster, wanted_features
from slurm_app.reconcilers.remove import remove_worker
from slurm_app.store import Store


async def reconcile(operation: OperationContext, store: Store) -> JsonObject:
    cluster = await Cluster.read(operation, store)
    old = cluster.member(operation.operation.member_id)
    new = cluster.member(operation.operation.replacement_member_id)
    if new.allocation_id == old.allocation_id:
        raise OperationFailed("same_machine", "cannot replace a worker by its own machine. Recover it instead")
    if new.status != MemberStatus.READY:
        # It takes over the features too, unless others are asked for.
        inherited = new.model_copy(
            update={"adapter_detail": {"features": list(wanted_features(old, operation.operation.input))}}
        )
        async with member_in_work(operation, inherited):
            await workers.join(operation, store, cluster, inherited)
    removed = await remove_worker(operation, store, cluster, old)
    operation.statuses_on_success[old.id] = MemberStatus.REMOVED
    return {**removed, "replaced_by": new.id}
