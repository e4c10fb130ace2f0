"""add: a worker joins the cluster."""

import asyncio

from gpuaas_contract.base import JsonObject
from gpuaas_contract.instances import ConditionStatus, Instance, Member, MemberStatus
from gpuaas_sdk import OperationContext, OperationFailed
from slurm_app.phases import FIRST_JOB, WORKER_PHASES
from slurm_app.reconcilers.cluster import Cluster, member_in_work
from slurm_app.reconcilers.seam import run_phases

POLL_SECONDS = 0.3


async def reconcile(operation: OperationContext) -> JsonObject:
    cluster = await Cluster.read(operation)
    member = next((worker for worker in cluster.workers if worker.id == operation.operation.member_id), None)
    if member is None:
        raise OperationFailed("member_gone", "the worker is no longer a member of the instance")
    async with member_in_work(operation, member):
        await _wait_for_controller(operation)
        # While the cluster is being deployed, its deploy runs the first job over all workers together.
        phases = [phase for phase in WORKER_PHASES if phase is not FIRST_JOB or _is_ready(cluster.instance)]
        scope = cluster.scope(operation, [member])
        evidence = await run_phases(operation, scope, phases)
    joined = evidence["join-workers"]
    await operation.report_member(member.id, status=MemberStatus.READY, adapter_detail=_node_detail(member, joined))
    return {"joined": joined}


def _is_ready(instance: Instance) -> bool:
    return any(c.type == "Ready" and c.status == ConditionStatus.TRUE for c in instance.conditions)


def _node_detail(member: Member, joined: JsonObject) -> JsonObject:
    return {"allocation_id": member.allocation_id, "nodes": joined}


async def _wait_for_controller(operation: OperationContext) -> None:
    async with operation.step("wait-for-controller", "Wait for the controller"):
        while True:
            status = (await Cluster.read(operation)).controller.status
            if status == MemberStatus.READY:
                return
            if status == MemberStatus.FAILED:
                raise OperationFailed(
                    "controller_failed", "the controller did not come up; retry its deploy, then this", retryable=True
                )
            await asyncio.sleep(POLL_SECONDS)
