"""Placement: which node a waiting request gets. Claims on a node are made under its row lock, so none passes it."""

from dataclasses import dataclass
from ipaddress import IPv4Network

from gpuaas_contract import ids
from gpuaas_contract.access import OPERATOR_LOGIN, PERSON_LOGIN
from gpuaas_contract.agent_link import CreateSlice, PrepareHost, ProjectNetwork
from gpuaas_contract.allocations import AllocationStatus, Shape, ShapeKind
from gpuaas_contract.base import Resource
from gpuaas_contract.nodes import Inventory
from gpuaas_contract.usage import UsageKind
from gpuaas_platform.domain.networks import bridge_name, free_address, gateway_cidr, owner_subnet
from gpuaas_platform.services import shapes
from gpuaas_platform.services.quotas import over_quota
from gpuaas_platform.services.timeline import on_behalf_of, record
from gpuaas_platform.services.volume_placement import mounts_of_new_machine, read_wanted
from gpuaas_platform.storage import allocations as store
from gpuaas_platform.storage import nodes as node_store
from gpuaas_platform.storage import usage as usage_store
from gpuaas_platform.storage.database import Row, Transaction


@dataclass(frozen=True, slots=True)
class AddressPlan:
    environment: str
    network_range: IPv4Network


def certificate_principal(login: str, allocation_id: str) -> str:
    """What a certificate must carry to log in to this machine as this user."""
    return f"{login}@{allocation_id}"


async def place_waiting(tx: Transaction, plan: AddressPlan) -> None:
    """Give every waiting request a node and an address, or say why it waits.

    Nodes are locked before the requests are read: who frees capacity and who asks for it at the same moment
    take turns, and the second of them sees what the first did. Requests are locked without waiting, so that
    nobody who holds one and wants a node is waited for.
    """
    nodes = await node_store.lock_ready(tx)
    for row in await store.list_waiting(tx):
        with on_behalf_of(tx, row["correlation_id"]):
            await _place(tx, row, nodes, plan)


async def _place(tx: Transaction, row: Row, nodes: list[Row], plan: AddressPlan) -> None:
    shape = Shape.model_validate(row["shape"])
    volumes = await read_wanted(tx, row)
    needed, near = volumes.room(shape), volumes.near(nodes)
    node = next((node for node in near if not shortage(node, needed, row["image"])), None)
    if shape.kind == ShapeKind.HOST:
        await _place_on_host(tx, row, nodes, node, shape, plan)
        return
    subnet = owner_subnet(plan.network_range, row["network_index"])
    if subnet is None:
        await _keep_waiting(tx, row, "waiting: the platform's range of addresses has no network left for its owner")
        return
    address = free_address(subnet, await store.list_taken_addresses(tx, row["owner_id"]))
    if address is None:
        await _keep_waiting(tx, row, "waiting: its owner's network has no free address")
        return
    if node is None:
        await _keep_waiting(tx, row, f"waiting for capacity: {_why(row, near, needed, volumes.bond())}")
        return
    _take(node, needed)
    await volumes.take_place(tx, node["id"])
    placed = await store.place(tx, row["id"], node["id"], address, node["inventory"].get("default_image"))
    await usage_store.begin(tx, UsageKind.OCCUPIED, placed)
    await record(tx, placed, "provisioning", f"on node {node['name']} at {address}")
    await order_machine(tx, {**row, **placed}, plan)


async def _place_on_host(
    tx: Transaction, row: Row, nodes: list[Row], node: Row | None, shape: Shape, plan: AddressPlan
) -> None:
    """All of the node or nothing: what it has beyond the request counts against the quota, too."""
    if node is None:
        await _keep_waiting(tx, row, f"waiting for capacity: {_why(row, nodes, shape)}")
        return
    whole = shapes.whole_of(node, shape)
    more = shapes.growth(shape, whole)
    over = [] if row["project_id"] is None else await over_quota(tx, row["project_id"], more)
    if over is None:
        return
    if over:
        reason = f"waiting: the project's quota does not allow all of {node['name']}: {'; '.join(over)}"
        await _keep_waiting(tx, row, reason)
        return
    _take(node, whole)
    placed = await store.place_on_host(tx, row["id"], node["id"], whole.model_dump(mode="json"))
    await usage_store.begin(tx, UsageKind.OCCUPIED, placed)
    await record(tx, placed, "provisioning", f"node {node['name']} as a whole")
    await order_machine(tx, {**row, **placed}, plan)


async def order_machine(tx: Transaction, row: Row, plan: AddressPlan) -> None:
    if shapes.kind_of(row) == ShapeKind.HOST:
        await order(tx, row, PrepareHost(allocation_id=row["id"], principals=_principals(row)))
    else:
        await order_slice(tx, row, plan)


def _principals(row: Row) -> dict[str, list[str]]:
    return {login: [certificate_principal(login, row["id"])] for login in (OPERATOR_LOGIN, PERSON_LOGIN)}


async def order_slice(tx: Transaction, row: Row, plan: AddressPlan) -> None:
    """Ask the node that the allocation was placed on to make the machine."""
    shape = Shape.model_validate(row["shape"])
    subnet = owner_subnet(plan.network_range, row["network_index"])
    assert subnet is not None
    network = ProjectNetwork(
        owner_id=row["owner_id"],
        bridge=bridge_name(plan.environment, row["owner_id"]),
        gateway_cidr=gateway_cidr(subnet),
    )
    spec = CreateSlice(
        allocation_id=row["id"],
        hostname=row["hostname"],
        shape=shape,
        image=row["image"],
        network=network,
        address=row["address"],
        principals=_principals(row),
        volumes=await mounts_of_new_machine(tx, row["id"]) if row["volumes"] else [],
    )
    await order(tx, row, spec)


async def order(tx: Transaction, row: Row, spec: Resource) -> None:
    """Give the allocation's node something to do."""
    await node_store.insert_task(
        tx,
        ids.new_id(ids.TASK),
        row["node_id"],
        row["id"],
        spec.model_dump(mode="json"),
        tx.correlation_id,
    )


def shortage(node: Row, shape: Shape, image: str | None = None) -> list[str]:
    """What the node lacks for the shape, in plain words; nothing where it has room."""
    if (misfit := shapes.misfit(node, shape)) is not None:
        return [misfit]
    inventory = Inventory.model_validate(node["inventory"])
    capacity = inventory.capacity
    free = {
        "CPUs": (capacity.cpus - node["cpus"], shape.cpus),
        "MiB of memory": (capacity.memory_mib - node["memory_mib"], shape.memory_mib),
        "GiB of disk": (capacity.disk_gib - node["disk_gib"], shape.disk_gib),
        "GPUs": (capacity.gpus - node["gpus"], shape.gpus),
    }
    lacking = [f"{has} {what} free, {needs} needed" for what, (has, needs) in free.items() if 0 < needs > has]
    return lacking if image is None or image in inventory.images else [f"it has no image {image}", *lacking]


def _take(node: Row, shape: Shape) -> None:
    node["cpus"] += shape.cpus
    node["memory_mib"] += shape.memory_mib
    node["disk_gib"] += shape.disk_gib
    node["gpus"] += shape.gpus


def _why(row: Row, nodes: list[Row], shape: Shape, bond: str = "") -> str:
    """`bond` says why only some nodes will do, where that is so."""
    if not nodes:
        return f"{bond}, which cannot take it now" if bond else "no node is ready"
    per_node = "; ".join(f"{node['name']}: {', '.join(shortage(node, shape, row['image']))}" for node in nodes)
    return f"{bond}, which has no room; {per_node}" if bond else per_node


async def _keep_waiting(tx: Transaction, row: Row, reason: str) -> None:
    if reason != row["reason"]:
        waiting = await store.set_status(tx, row["id"], AllocationStatus.REQUESTED, reason)
        await record(tx, waiting, "waiting", reason)
