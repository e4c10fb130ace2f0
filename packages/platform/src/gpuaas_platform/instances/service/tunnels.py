"""Tunnels: connections of people to a port that an app declares for them, through the agent of the member's machine."""

from dataclasses import dataclass

from gpuaas_contract import ids
from gpuaas_contract.ports import TUNNEL_SECONDS, MemberPort
from gpuaas_platform.access.records import AccessGrantRecord, NewAccessGrant, TunnelPort
from gpuaas_platform.access.service.streams import require_active
from gpuaas_platform.access.storage import access as access_store
from gpuaas_platform.allocations.records import AllocationView
from gpuaas_platform.allocations.rules import shapes
from gpuaas_platform.allocations.storage import allocations as allocation_store
from gpuaas_platform.catalogue.service.versions import manifest_of
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.identity.rules.policy import Caller, Permission
from gpuaas_platform.instances.rules.ports import find_port, number_of, require_open
from gpuaas_platform.instances.service.instances import require_member, reread


@dataclass(frozen=True, slots=True)
class Target:
    port: MemberPort
    machine: AllocationView


@dataclass(frozen=True, slots=True)
class Tunnel:
    access: AccessGrantRecord
    machine: AllocationView
    port: TunnelPort


async def find_target(tx: Transaction, caller: Caller, member_id: str, wanted: str) -> Target:
    """Find the port and its machine, where the caller may reach it now."""
    member = await require_member(tx, caller, member_id, Permission.TUNNEL_OPEN)
    instance = await reread(tx, member.instance_id)
    port = find_port(manifest_of(instance), member.component_key, instance.inputs, wanted)
    require_open(member)
    machine = await allocation_store.get(tx, member.allocation_id)
    assert machine is not None
    require_active(machine)
    shown = MemberPort(
        member_id=member.id,
        instance_id=instance.id,
        component_key=member.component_key,
        allocation_id=machine.id,
        name=port.name,
        number=number_of(port, instance.inputs),
        description=port.description,
        through_agent=shapes.supports(machine, "tunnel"),
    )
    return Target(shown, machine)


async def open_tunnel(tx: Transaction, caller: Caller, member_id: str, wanted: str) -> Tunnel:
    """Give access to the port for one more connection, which is cut when the right, the member or the machine ends."""
    target = await find_target(tx, caller, member_id, wanted)
    machine = target.machine
    shapes.require_support(machine, "tunnel")
    port = TunnelPort(member_id, target.port.name, target.port.number)
    access = await access_store.find_tunnel(tx, member_id, port.name) or await _grant(tx, machine, port)
    await tx.audit_owned("tunnel.open", machine, _detail(access, port))
    return Tunnel(access, machine, port)


async def _grant(tx: Transaction, machine: AllocationView, port: TunnelPort) -> AccessGrantRecord:
    new = NewAccessGrant(
        project_id=machine.project_id,
        owner_id=machine.owner_id,
        allocation_ids=[machine.id],
        login="",
        seconds=TUNNEL_SECONDS,
        tunnel=port,
    )
    access = await access_store.insert(tx, ids.new_id(ids.ACCESS_GRANT), new)
    await tx.audit_owned("tunnel.grant", machine, _detail(access, port))
    return access


def _detail(access: AccessGrantRecord, port: TunnelPort) -> dict[str, object]:
    return {"grant": access.id, "member": port.member_id, "port": port.name, "number": port.number}
