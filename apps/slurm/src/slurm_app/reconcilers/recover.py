"""recover: a worker that failed is made to work again, from wherever it stopped.

Its machine may have been restarted, its slurmd killed, its record lost with slurmctld, its GPUs changed. What a
person did to the node is left alone, and said.
"""

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
