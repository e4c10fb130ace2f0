"""add: a worker joins the cluster."""

from gpuaas_contract.base import JsonObject
from gpuaas_sdk import OperationContext
from slurm_app.reconcilers import workers
from slurm_app.reconcilers.cluster import Cluster, member_in_work


async def reconcile(operation: OperationContext) -> JsonObject:
    cluster = await Cluster.read(operation)
    member = cluster.member(operation.operation.member_id)
    async with member_in_work(operation, member):
        return await workers.join(operation, cluster, member)
