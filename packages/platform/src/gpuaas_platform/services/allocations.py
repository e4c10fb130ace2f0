"""Allocations: from a request to a machine and back."""

from dataclasses import dataclass
from ipaddress import IPv4Network

from gpuaas_contract import ids
from gpuaas_contract.access import OPERATOR_LOGIN, PERSON_LOGIN
from gpuaas_contract.agent_link import CreateSlice, DeleteSlice, ProjectNetwork
from gpuaas_contract.allocations import (
    Allocation,
    AllocationCreate,
    AllocationPage,
    AllocationStatus,
    Shape,
    Timeline,
    TimelineEntry,
)
from gpuaas_contract.nodes import Inventory
from gpuaas_contract.problems import AllowedAction, Code
from gpuaas_platform.domain.errors import Refusal, not_found
from gpuaas_platform.domain.networks import bridge_name, free_address, gateway_cidr, project_subnet
from gpuaas_platform.domain.policy import Caller, Permission, Scope
from gpuaas_platform.services.identity import require_project, visible_projects
from gpuaas_platform.services.pages import cut_page, decode_cursor
from gpuaas_platform.storage import allocations as store
from gpuaas_platform.storage import instances as instance_store
from gpuaas_platform.storage import nodes as node_store
from gpuaas_platform.storage.database import Row, Transaction


@dataclass(frozen=True, slots=True)
class AddressPlan:
    environment: str
    network_range: IPv4Network


def certificate_principal(login: str, allocation_id: str) -> str:
    """What a certificate must carry to log in to this machine as this user."""
    return f"{login}@{allocation_id}"


def _scope(row: Row) -> Scope:
    return Scope(tenant_id=row["tenant_id"], project_id=row["project_id"])


async def require_allocation(
    tx: Transaction, caller: Caller, allocation_id: str, permission: Permission, *, lock: bool = False
) -> Row:
    row = await (store.lock if lock else store.get)(tx, allocation_id)
    if row is None:
        raise not_found("allocation", allocation_id)
    caller.require(permission, _scope(row), "allocation", allocation_id)
    return row


async def create_allocation(tx: Transaction, caller: Caller, body: AllocationCreate, plan: AddressPlan) -> Allocation:
    await require_project(tx, caller, body.project_id, Permission.ALLOCATION_CREATE)
    shape = body.shape.model_dump(mode="json")
    row = await store.insert(tx, ids.new_id(ids.ALLOCATION), body.project_id, body.name, body.name, shape)
    if row is None:
        raise Refusal(Code.NAME_TAKEN, f"the project has an allocation named {body.name!r} already")
    await tx.audit("allocation.create", row["id"], project_id=body.project_id)
    await _record(tx, row, "requested", f"{body.shape.cpus} CPUs, {body.shape.memory_mib} MiB, {body.shape.gpus} GPUs")
    await place_waiting(tx, plan)
    return Allocation.model_validate(await store.get(tx, row["id"]))


async def get_allocation(tx: Transaction, caller: Caller, allocation_id: str) -> Allocation:
    row = await require_allocation(tx, caller, allocation_id, Permission.ALLOCATION_READ)
    return Allocation.model_validate(row)


async def list_allocations(
    tx: Transaction, caller: Caller, project_id: str | None, status: str | None, cursor: str | None, limit: int
) -> AllocationPage:
    projects = await visible_projects(tx, caller, project_id, Permission.ALLOCATION_READ)
    rows = await store.list_matching(tx, projects, status, decode_cursor(cursor), limit + 1)
    rows, after = cut_page(rows, limit)
    return AllocationPage(items=[Allocation.model_validate(row) for row in rows], next_cursor=after)


async def get_timeline(tx: Transaction, caller: Caller, allocation_id: str) -> Timeline:
    await require_allocation(tx, caller, allocation_id, Permission.ALLOCATION_READ)
    entries = await store.timeline(tx, allocation_id)
    return Timeline(items=[TimelineEntry.model_validate(entry) for entry in entries])


_RELEASABLE = {
    AllocationStatus.REQUESTED,
    AllocationStatus.PROVISIONING,
    AllocationStatus.ACTIVE,
    AllocationStatus.FAILED,
    AllocationStatus.RELEASE_FAILED,
}


async def release_allocation(tx: Transaction, caller: Caller, allocation_id: str) -> Allocation:
    row = await require_allocation(tx, caller, allocation_id, Permission.ALLOCATION_RELEASE, lock=True)
    tx.match(row)
    if row["status"] not in _RELEASABLE:
        raise Refusal(Code.INVALID_STATE, f"the allocation is {row['status']} already")
    users = await instance_store.list_live_on(tx, [allocation_id])
    if users:
        names = sorted({user["instance_name"] for user in users})
        raise Refusal(
            Code.ALLOCATION_IN_USE,
            f"the machine is used by {', '.join(names)}; decommission that first",
            allowed_actions=[
                AllowedAction(
                    action="decommission",
                    title=f"Decommission {name}",
                    method="POST",
                    href=f"/v1/app-instances/{instance_id}/operations",
                )
                for instance_id, name in sorted({(user["instance_id"], user["instance_name"]) for user in users})
            ],
        )
    await tx.audit("allocation.release", allocation_id, project_id=row["project_id"])
    await node_store.cancel_tasks(tx, allocation_id)
    if row["node_id"] is None:
        released = await store.set_status(tx, allocation_id, AllocationStatus.RELEASED)
        await _record(tx, released, "released", "it had no machine yet")
    else:
        releasing = await store.set_status(tx, allocation_id, AllocationStatus.RELEASING)
        await _record(tx, releasing, "releasing", "release accepted")
        spec = DeleteSlice(allocation_id=allocation_id)
        await node_store.insert_task(
            tx,
            ids.new_id(ids.TASK),
            row["node_id"],
            allocation_id,
            spec.model_dump(mode="json"),
            tx.correlation_id,
        )
    return Allocation.model_validate(await store.get(tx, allocation_id))


async def place_waiting(tx: Transaction, plan: AddressPlan) -> None:
    """Give every waiting request a node and an address, or say why it waits. Nodes are locked meanwhile."""
    waiting = await store.list_waiting(tx)
    if not waiting:
        return
    nodes = await node_store.lock_ready(tx)
    for row in waiting:
        shape = Shape.model_validate(row["shape"])
        node = next((node for node in nodes if not _shortage(node, shape)), None)
        subnet = project_subnet(plan.network_range, row["network_index"])
        address = free_address(subnet, await store.list_taken_addresses(tx, row["project_id"]))
        if node is None or address is None:
            await _keep_waiting(tx, row, nodes, shape, no_address=address is None)
            continue
        _take(node, shape)
        placed = await store.place(tx, row["id"], node["id"], address)
        await _record(tx, placed, "provisioning", f"on node {node['name']} at {address}")
        await node_store.insert_task(
            tx,
            ids.new_id(ids.TASK),
            node["id"],
            row["id"],
            _create_slice(row, shape, subnet, address, plan).model_dump(mode="json"),
            row["correlation_id"],
        )


def _create_slice(row: Row, shape: Shape, subnet: IPv4Network, address: str, plan: AddressPlan) -> CreateSlice:
    network = ProjectNetwork(
        project_id=row["project_id"],
        bridge=bridge_name(plan.environment, row["project_id"]),
        gateway_cidr=gateway_cidr(subnet),
    )
    principals = {login: [certificate_principal(login, row["id"])] for login in (OPERATOR_LOGIN, PERSON_LOGIN)}
    return CreateSlice(
        allocation_id=row["id"],
        hostname=row["hostname"],
        shape=shape,
        network=network,
        address=address,
        principals=principals,
    )


def _shortage(node: Row, shape: Shape) -> list[str]:
    capacity = Inventory.model_validate(node["inventory"]).capacity
    free = {
        "CPUs": (capacity.cpus - node["cpus"], shape.cpus),
        "MiB of memory": (capacity.memory_mib - node["memory_mib"], shape.memory_mib),
        "GiB of disk": (capacity.disk_gib - node["disk_gib"], shape.disk_gib),
        "GPUs": (capacity.gpus - node["gpus"], shape.gpus),
    }
    return [f"{has} {what} free, {needs} needed" for what, (has, needs) in free.items() if has < needs]


def _take(node: Row, shape: Shape) -> None:
    node["cpus"] += shape.cpus
    node["memory_mib"] += shape.memory_mib
    node["disk_gib"] += shape.disk_gib
    node["gpus"] += shape.gpus


async def _keep_waiting(tx: Transaction, row: Row, nodes: list[Row], shape: Shape, *, no_address: bool) -> None:
    if no_address:
        reason = "waiting: the project's network has no free address"
    elif not nodes:
        reason = "waiting for capacity: no node is ready"
    else:
        per_node = "; ".join(f"{node['name']}: {', '.join(_shortage(node, shape))}" for node in nodes)
        reason = f"waiting for capacity: {per_node}"
    if reason != row["reason"]:
        waiting = await store.set_status(tx, row["id"], AllocationStatus.REQUESTED, reason)
        await _record(tx, waiting, "waiting", reason)


async def slice_progressed(tx: Transaction, allocation_id: str, step: str, message: str) -> None:
    row = await store.lock(tx, allocation_id)
    if row is not None:
        await _record(tx, row, step, message)


async def slice_created(tx: Transaction, allocation_id: str, ok: bool, message: str) -> None:
    row = await store.lock(tx, allocation_id)
    if row is None or row["status"] != AllocationStatus.PROVISIONING:
        return
    status = AllocationStatus.ACTIVE if ok else AllocationStatus.FAILED
    row = await store.set_status(tx, allocation_id, status, "" if ok else message)
    await _record(tx, row, status.value, message)


async def slice_deleted(tx: Transaction, allocation_id: str, ok: bool, message: str, plan: AddressPlan) -> None:
    row = await store.lock(tx, allocation_id)
    if row is None or row["status"] != AllocationStatus.RELEASING:
        return
    status = AllocationStatus.RELEASED if ok else AllocationStatus.RELEASE_FAILED
    row = await store.set_status(tx, allocation_id, status, "" if ok else message)
    await _record(tx, row, status.value, message)
    if ok:
        await place_waiting(tx, plan)


async def _record(tx: Transaction, row: Row, step: str, message: str) -> None:
    await store.add_timeline(tx, row["id"], step, message)
    await tx.changed("allocation", row, step, message=message, project_id=row["project_id"])
