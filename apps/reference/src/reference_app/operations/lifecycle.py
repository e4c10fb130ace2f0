"""start, stop, restart, upgrade and configure: the whole instance, the controller first."""

from gpuaas_contract.base import JsonObject
from gpuaas_contract.instances import Member, MemberStatus
from gpuaas_sdk import OperationContext, Phase, run_phases

from reference_app import software
from reference_app.cluster import Cluster
from reference_app.operations.deploy import report_not_ready, report_ready
from reference_app.phases import CONFIGURE, INSTALL, PROVE, RECORD, RUN, Work
from reference_app.software import Role


async def start(operation: OperationContext) -> JsonObject:
    return await _bring_up(operation, await Cluster.read(operation), (CONFIGURE, RUN, PROVE))


async def restart(operation: OperationContext) -> JsonObject:
    """Stop every daemon, the controller last, and start them with the present token and configuration."""
    cluster = await Cluster.read(operation)
    for member in reversed(cluster.members):
        await _stop(operation, cluster, member)
    return await _bring_up(operation, cluster, (CONFIGURE, RUN, PROVE))


async def configure(operation: OperationContext) -> JsonObject:
    cluster = await Cluster.read(operation, inputs=operation.operation.input.get("inputs"))
    return await _bring_up(operation, cluster, (CONFIGURE, RUN, PROVE))


async def upgrade(operation: OperationContext) -> JsonObject:
    wanted = operation.operation.input
    cluster = await Cluster.read(operation, version=wanted.get("version"), inputs=wanted.get("inputs"))
    # The new version may bring what the one before did not.
    return await _bring_up(operation, cluster, (RECORD, INSTALL, CONFIGURE, RUN, PROVE))


async def stop(operation: OperationContext) -> JsonObject:
    cluster = await Cluster.read(operation)
    await report_not_ready(operation, cluster, "Stopped")
    for member in reversed(cluster.members):
        await _stop(operation, cluster, member)
        operation.statuses_on_success[member.id] = MemberStatus.STOPPED
    return {"stopped": len(cluster.members)}


async def _stop(operation: OperationContext, cluster: Cluster, member: Member) -> None:
    machine = cluster.machine(member)
    async with operation.step(
        f"stop-{_name(cluster, member)}", f"Stop the {member.component_key} on {machine.hostname}"
    ):
        await software.ensure_stopped(machine, Role(member.component_key))


async def _bring_up(operation: OperationContext, cluster: Cluster, phases: tuple[Phase[Work], ...]) -> JsonObject:
    version = ""
    for member in cluster.members:
        name = _name(cluster, member)
        named = [Phase(f"{phase.key}-{name}", f"{phase.title}: {name}", phase.run) for phase in phases]
        evidence = await run_phases(operation, Work(cluster, member), named)
        proven = evidence[f"{PROVE.key}-{name}"]
        if member is cluster.controller:
            version = str(proven["version"])
        drained = proven.get("state") == "drained"
        operation.statuses_on_success[member.id] = MemberStatus.DRAINED if drained else MemberStatus.READY
    await report_ready(operation, cluster, version)
    return {"version": version}


def _name(cluster: Cluster, member: Member) -> str:
    return f"{member.component_key}-{cluster.machine(member).hostname}"
