"""decommission: everything that the app brought is removed, and the receipt proves it."""

from gpuaas_contract.base import JsonObject
from gpuaas_contract.instances import Condition, ConditionStatus, MemberStatus
from gpuaas_sdk import OperationContext, OperationFailed
from slurm_app.decommission_phases import DECOMMISSION_PHASES, PROVE, TeardownIncompleteError
from slurm_app.reconcilers.cluster import Cluster
from slurm_app.reconcilers.receipts import receipt_of
from slurm_app.reconcilers.seam import run_phases


async def reconcile(operation: OperationContext) -> JsonObject:
    cluster = await Cluster.read(operation)
    members = [cluster.controller, *cluster.workers]
    await _say_that_it_goes(operation, cluster)
    for member in members:
        await operation.report_member(member.id, status=MemberStatus.REMOVING)
    scope = cluster.scope(operation, cluster.workers, leaving=True)
    try:
        evidence = await run_phases(operation, scope, DECOMMISSION_PHASES)
    except OperationFailed as failure:
        if isinstance(failure.__cause__, TeardownIncompleteError):
            failure.result = {"receipt": receipt_of(members, failure.__cause__.evidence["receipts"])}
        raise
    # With the end of the operation, not before: a successor must still find what there is to take apart.
    operation.statuses_on_success.update({member.id: MemberStatus.REMOVED for member in members})
    return {"receipt": receipt_of(members, evidence[PROVE.key]["receipts"])}


async def _say_that_it_goes(operation: OperationContext, cluster: Cluster) -> None:
    """From now on nobody should use it, nor find instructions how to."""
    generation = cluster.instance.generation
    gone = [
        Condition(type=kind, status=ConditionStatus.FALSE, reason="Decommissioning", observed_generation=generation)
        for kind in ("Ready", "InSync")
    ]
    await operation.report_instance(conditions=gone, access_notes=[])
