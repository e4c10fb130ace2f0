"""add: a worker joins the cluster."""

from gpuaas_contract.base import JsonObject
from gpuaas_sdk import OperationContext, member_in_work
from slurm_app.reconcilers import workers
from slurm_app.reconcilers.cluster import Cluster
from slurm_app.store import Store


async def reconcile(operation: OperationContext, store: Store) -> JsonObject:
    cluster = await Cluster.read(operation, store)
    member = cluster.member(operation.operation.member_id)
    async with member_in_work(operation, member):
        return await workers.join(operation, store, cluster, member)
