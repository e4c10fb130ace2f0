"""drain and resume: a worker takes no new jobs, and takes them again."""

from gpuaas_contract.base import JsonObject
from gpuaas_contract.instances import Member, MemberStatus
from gpuaas_sdk import OperationContext, OperationFailed
from slurm_app.draining import DrainWish, Evidence, ensure_drained
from slurm_app.errors import NotReadyError, SlurmAppError
from slurm_app.reconcilers.cluster import Cluster, condition
from slurm_app.reconcilers.seam import app_step
from slurm_app.slurm import nodes


async def reconcile(operation: OperationContext) -> JsonObject:
    cluster = await Cluster.read(operation)
    member = cluster.member(operation.operation.member_id)
    evidence = await drain_member(operation, cluster, member)
    await report_drained(operation, cluster, member, True, evidence["node"])
    await operation.report_member(member.id, status=MemberStatus.DRAINED)
    return {"drained": evidence}


async def drain_member(operation: OperationContext, cluster: Cluster, member: Member) -> Evidence:
    """A failure leaves the drain where it is: the member still takes no new jobs, and that is what it shows."""
    host = node_of(member)
    try:
        wish = DrainWish.of(operation.operation.input, host, f"{operation.operation.kind} {operation.operation_id}")
    except SlurmAppError as error:
        raise OperationFailed(error.code, error.detail, member_usable=True) from error
    controller = operation.machine(cluster.controller.allocation_id)
    await operation.report_member(member.id, status=MemberStatus.DRAINING)
    async with app_step(operation, "drain-node", f"Drain {host}") as step:
        step.evidence = evidence = await ensure_drained(controller, host, wish, step.progress)
    return evidence


async def report_drained(
    operation: OperationContext, cluster: Cluster, member: Member, drained: bool, words: str
) -> None:
    said = condition("Drained", drained, "Observed", words, cluster.instance.generation)
    kept = [each for each in member.conditions if each.type != said.type]
    await operation.report_member(member.id, conditions=[*kept, said])


def node_of(member: Member) -> str:
    host = member.adapter_detail.get("node")
    if not host:
        raise OperationFailed("not_joined", "the worker never joined the cluster: recover or remove it")
    return str(host)


async def resume(operation: OperationContext) -> JsonObject:
    cluster = await Cluster.read(operation)
    member = cluster.member(operation.operation.member_id)
    host = node_of(member)
    controller = operation.machine(cluster.controller.allocation_id)
    async with app_step(operation, "resume-node", f"Resume {host}") as step:
        record = await nodes.ensure_resumed(controller, host)
        step.evidence = {"node": record.words}
        if {"DRAIN", "DOWN"} & record.state or not record.responding:
            raise NotReadyError("not_usable", f"{host} is {record.words}: recover it")
    await report_drained(operation, cluster, member, False, record.words)
    await operation.report_member(member.id, status=MemberStatus.READY)
    return {"node": record.words}
