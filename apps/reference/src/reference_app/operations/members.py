"""add, drain, resume, remove, replace, recover and resize: one member each."""

from gpuaas_contract.base import JsonObject
from gpuaas_contract.instances import Member, MemberStatus
from gpuaas_contract.operations import ResizeQuestion
from gpuaas_sdk import OperationContext, OperationFailed, member_in_work, prove_removal, run_phases

from reference_app import phases, software
from reference_app.cluster import Cluster
from reference_app.phases import PROVE, RECORD, Work
from reference_app.receipt import prove_removed
from reference_app.software import Role

POLL_SECONDS = 0.3
LEAST_MEMORY_MIB = 256


async def add(operation: OperationContext) -> JsonObject:
    cluster = await Cluster.read(operation)
    member = cluster.member(operation.operation.member_id)
    return await _join(operation, cluster, member)


async def _join(operation: OperationContext, cluster: Cluster, member: Member) -> JsonObject:
    async with member_in_work(operation, member):
        await operation.wait_for_primary(every=POLL_SECONDS, failure_code="controller_failed")
        evidence = await run_phases(operation, Work(cluster, member), phases.ALL)
    await operation.report_member(member.id, status=MemberStatus.READY, adapter_detail=evidence[PROVE.key])
    return {"joined": evidence[PROVE.key]}


async def drain(operation: OperationContext) -> JsonObject:
    return await _mark(operation, "drain", MemberStatus.DRAINED)


async def resume(operation: OperationContext) -> JsonObject:
    return await _mark(operation, "resume", MemberStatus.READY)


async def _mark(operation: OperationContext, verb: str, status: MemberStatus) -> JsonObject:
    cluster = await Cluster.read(operation)
    member = cluster.member(operation.operation.member_id)
    name = cluster.machine(member).hostname
    async with operation.step(verb, f"{verb.capitalize()} {name}", member_usable=True) as step:
        await software.ensure_told(cluster.controller_machine, verb, name)
        step.evidence = {"worker": await software.read_worker(cluster.controller_machine, name) or {}}
    operation.statuses_on_success[member.id] = status
    return step.evidence


async def remove(operation: OperationContext) -> JsonObject:
    cluster = await Cluster.read(operation)
    return await _take_away(operation, cluster, cluster.member(operation.operation.member_id))


async def _take_away(operation: OperationContext, cluster: Cluster, member: Member) -> JsonObject:
    """Off the machine first: a worker that still beats would come back onto the roll."""
    machine, role = cluster.machine(member), Role(member.component_key)
    staying = cluster.roles_on(member.allocation_id, without=member.id)
    await operation.report_member(member.id, status=MemberStatus.REMOVING)
    async with operation.step("remove-software", f"Remove the worker from {machine.hostname}"):
        await software.ensure_removed(machine, [role], staying)
    async with operation.step("strike-off", "Strike it off the roll"):
        await software.ensure_told(cluster.controller_machine, "forget", machine.hostname)
    async with operation.step("prove-removal", "Look for what is left") as step:
        came = member.id not in await operation.members_before(RECORD.key)
        found = await prove_removed(machine, [role], staying, int(cluster.inputs["port"]), came=came)
        step.evidence = removed = prove_removal([member], [found])
    operation.statuses_on_success[member.id] = MemberStatus.REMOVED
    return removed


async def replace(operation: OperationContext) -> JsonObject:
    """The new one joins before the old one leaves."""
    cluster = await Cluster.read(operation)
    joined = await _join(operation, cluster, cluster.member(operation.operation.replacement_member_id))
    gone = await _take_away(operation, cluster, cluster.member(operation.operation.member_id))
    return {**joined, **gone}


async def recover(operation: OperationContext) -> JsonObject:
    """From whatever it is, to what it should be: every phase looks before it acts."""
    cluster = await Cluster.read(operation)
    member = cluster.member(operation.operation.member_id)
    async with member_in_work(operation, member):
        evidence = await run_phases(operation, Work(cluster, member), phases.ALL)
    drained = evidence[PROVE.key].get("state") == "drained"
    operation.statuses_on_success[member.id] = MemberStatus.DRAINED if drained else MemberStatus.READY
    return {"recovered": evidence[PROVE.key]}


async def resize(operation: OperationContext) -> JsonObject:
    """Nothing here depends on the size of a machine, as long as the daemon fits into it."""
    question = ResizeQuestion.model_validate(operation.operation.input)
    async with operation.step("consider", "Consider the wanted shape"):
        if question.wanted_shape.memory_mib < LEAST_MEMORY_MIB:
            detail = f"a worker needs {LEAST_MEMORY_MIB} MiB of memory"
            raise OperationFailed("shape_too_small", detail, member_usable=True)
    return {"agreed": True}
