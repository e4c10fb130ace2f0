"""drain and resume: a worker takes no new jobs, and takes them again."""

import asyncio

from gpuaas_contract.base import JsonObject
from gpuaas_contract.instances import Member, MemberStatus
from gpuaas_sdk import OperationContext, OperationFailed
from slurm_app.draining import POLL_SECONDS, DrainRequest, ensure_drained
from slurm_app.errors import NotReadyError
from slurm_app.reconcilers.cluster import Cluster, condition
from slurm_app.slurm import nodes
from slurm_app.store import Store

USABLE_SECONDS = 90.0


async def reconcile(operation: OperationContext, store: Store) -> JsonObject:
    cluster = await Cluster.read(operation, store)
    member = cluster.member(operation.operation.member_id)
    evidence = await drain_member(operation, cluster, member, await node_of(store, member))
    await report_drained(operation, cluster, member, True, evidence["node"])
    await operation.report_member(member.id, status=MemberStatus.DRAINED)
    return {"drained": evidence}


async def drain_member(operation: OperationContext, cluster: Cluster, member: Member, host: str) -> JsonObject:
    """A failure leaves the drain where it is: the member still takes no new jobs, and that is what it shows."""
    request = DrainRequest.of(operation.operation.input, host, f"{operation.operation.kind} {operation.operation_id}")
    controller = operation.machine(cluster.controller.allocation_id)
    await operation.report_member(member.id, status=MemberStatus.DRAINING)
    async with operation.step("drain-node", f"Drain {host}", member_usable=True) as step:
        step.evidence = evidence = await ensure_drained(controller, host, request, step.progress)
    return evidence


async def report_drained(
    operation: OperationContext, cluster: Cluster, member: Member, drained: bool, words: str
) -> None:
    said = condition("Drained", drained, "Observed", words, cluster.instance.generation)
    await operation.report_member(member.id, conditions=[said])


async def node_of(store: Store, member: Member) -> str:
    host = await known_node(store, member)
    if host is None:
        raise OperationFailed(
            "not_joined", "cannot drain or resume the worker: it never joined the cluster. Recover or remove it"
        )
    return host


async def known_node(store: Store, member: Member) -> str | None:
    """The name under which slurmctld knows it; None where it never got so far."""
    return member.adapter_detail.get("node") or await store.node_of(member.id)


async def resume(operation: OperationContext, store: Store) -> JsonObject:
    cluster = await Cluster.read(operation, store)
    member = cluster.member(operation.operation.member_id)
    host = await node_of(store, member)
    controller = operation.machine(cluster.controller.allocation_id)
    async with operation.step("resume-node", f"Resume {host}", member_usable=True) as step:
        record = await nodes.ensure_resumed(controller, host)
        end = asyncio.get_running_loop().time() + USABLE_SECONDS
        while not record.usable:
            # A busy machine may miss one of slurmctld's calls; the next one is answered.
            if asyncio.get_running_loop().time() >= end:
                raise NotReadyError("not_usable", f"cannot resume {host}: its node is {record.words}. Recover it")
            await asyncio.sleep(POLL_SECONDS)
            record = await nodes.read_node(controller, host)
        step.evidence = {"node": record.words}
    await report_drained(operation, cluster, member, False, record.words)
    await operation.report_member(member.id, status=MemberStatus.READY)
    return {"node": record.words}
