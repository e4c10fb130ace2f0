"""decommission: everything that the app brought is removed, and the receipt proves it."""

from gpuaas_contract.base import JsonObject
from gpuaas_contract.instances import MemberStatus
from gpuaas_sdk import Machine, MachineReceipt, OperationContext, on_each, prove_removal

from reference_app import software
from reference_app.cluster import Cluster
from reference_app.operations.deploy import report_not_ready
from reference_app.phases import RECORD
from reference_app.receipt import prove_removed


async def reconcile(operation: OperationContext) -> JsonObject:
    cluster = await Cluster.read(operation)
    await report_not_ready(operation, cluster, "Decommissioning")
    for member in cluster.members:
        await operation.report_member(member.id, status=MemberStatus.REMOVING)
    never_came = await operation.members_before(RECORD.key)
    machines = [cluster.machine(member) for member in cluster.members]

    async def remove(machine: Machine) -> JsonObject:
        return await software.ensure_removed(machine, cluster.roles_on(machine.allocation_id), [])

    async def look(machine: Machine) -> MachineReceipt:
        roles, port = cluster.roles_on(machine.allocation_id), int(cluster.inputs["port"])
        came = any(m.id not in never_came for m in cluster.members if m.allocation_id == machine.allocation_id)
        return await prove_removed(machine, roles, [], port, came=came)

    async with operation.step("remove-software", "Remove what the app brought") as step:
        step.evidence = {**await on_each(machines, remove)}
    async with operation.step("prove-removal", "Look for what is left") as step:
        found = await on_each(machines, look)
        step.evidence = removed = prove_removal(cluster.members, found.values())
    # With the end of the operation, not before: a successor must still find what there is to take apart.
    operation.statuses_on_success.update({member.id: MemberStatus.REMOVED for member in cluster.members})
    return removed
