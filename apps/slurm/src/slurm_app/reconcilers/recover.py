"""recover: a member that failed is made to work again, from wherever it stopped.

Its machine may have been restarted, its daemons killed, its record lost with slurmctld, its GPUs changed. What a
person did to the node is left alone, and said. Jobs go on: slurmd keeps them while slurmctld is started again.
"""

from gpuaas_contract.base import JsonObject
from gpuaas_contract.instances import Member, MemberStatus
from gpuaas_sdk import OperationContext, member_in_work, run_phases
from slurm_app.phases import RECOVER_CONTROLLER_PHASES
from slurm_app.reconcilers import workers
from slurm_app.reconcilers.cluster import Cluster, munge_key, version_number
from slurm_app.slurm import facts
from slurm_app.store import Store


async def reconcile(operation: OperationContext, store: Store) -> JsonObject:
    cluster = await Cluster.read(operation, store)
    member = cluster.member(operation.operation.member_id)
    # Before anything is said of the member: where the key is refused, it is as well as before.
    key = await munge_key(operation, cluster, member_usable=member.status == MemberStatus.READY)
    async with member_in_work(operation, member):
        if member.id == cluster.controller.id:
            return await _recover_controller(operation, cluster, member, key)
        return await workers.join(operation, store, cluster, member, key)


async def _recover_controller(operation: OperationContext, cluster: Cluster, member: Member, key: bytes) -> JsonObject:
    """Start what does not run, and prove that slurmctld answers. The configuration stays as it is, and no worker's
    machine is touched."""
    scope = cluster.scope(operation, [], munge_key=key)
    evidence = await run_phases(operation, scope, RECOVER_CONTROLLER_PHASES)
    versions = await facts.read_versions(scope.controller)
    kept = {name: value for name, value in member.adapter_detail.items() if name not in {"error", "operation_id"}}
    await operation.client.members.report(
        member.id,
        operation,
        status=MemberStatus.READY,
        adapter_detail={**kept, "node": scope.controller.hostname, "versions": versions},
        observed_runtime=version_number(versions["slurmctld"]),
    )
    return {"nodes": evidence["prove-controller"]["nodes"]}
