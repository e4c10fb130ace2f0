"""Placement: which node a waiting request gets. Claims on a node are made under its row lock, so none passes it."""

from dataclasses import dataclass, replace
from ipaddress import IPv4Network

from gpuaas_contract.agent_link import CreateSlice, PrepareHost, ProjectNetwork
from gpuaas_contract.allocations import AllocationStatus, Shape, ShapeKind
from gpuaas_contract.events import AllocationEvent
from gpuaas_contract.nodes import NodeStatus
from gpuaas_contract.usage import UsageKind
from gpuaas_platform.allocations.records import AllocationRecord, AllocationView
from gpuaas_platform.allocations.rules import shapes
from gpuaas_platform.allocations.rules.networks import bridge_name, free_address, gateway_cidr, owner_subnet
from gpuaas_platform.allocations.storage import allocations as store
from gpuaas_platform.allocations.storage import usage as usage_store
from gpuaas_platform.allocations.storage.allocations import record
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.identity.service.quotas import over_quota
from gpuaas_platform.nodes import storage as node_store
from gpuaas_platform.nodes.records import NodeView
from gpuaas_platform.volumes.service.placement import WantedVolumes, lock_wanted, mounts_of_new_machine, read_wanted

NODES_NAMED = 10
"""A request that waits says so much of how many nodes."""


@dataclass(frozen=True, slots=True)
class AddressPlan:
    environment: str
    network_range: IPv4Network


async def place_waiting(tx: Transaction, plan: AddressPlan, only: list[str] | None = None) -> None:
    """Give every waiting request, or only these, a node and an address, or say why it waits.

    Whoever holds a node waits for nobody: what is locked by others is passed over, and looked at again by the loop in
    `jobs`, which also finds requests and room that came up at the same moment and did not see each other. Hold no
    node when you call this.
    """
    if only is None and not await store.has_waiting(tx):
        return
    search = Search(tx)
    for row in await store.list_waiting(tx, only):
        with tx.on_behalf_of(row.correlation_id):
            await _place(tx, row, search, plan)
        if search.found and row.volumes and only is None:
            return  # Volumes are locked now, which come after all nodes: the rest has the next turn.


class Search:
    """For nodes with room, for the requests of one transaction. Room only shrinks meanwhile, so that what was looked
    for in vain is not looked for again."""

    def __init__(self, tx: Transaction) -> None:
        self._tx = tx
        self._in_vain: dict[str, str] = {}
        self.holds = False
        """Whether a node is locked, so that nothing may be waited for any more."""
        self.found = False
        """Whether the last search was not in vain."""

    async def find(self, shape: Shape, row: AllocationView, volumes: WantedVolumes) -> NodeView | str | None:
        """A node, locked, or why there is none; None where only nodes have room that others hold just now."""
        key = f"{shape.model_dump_json()} {row.image} {volumes.places()}"
        self.found = False
        if key in self._in_vain:
            return self._in_vain[key]
        node, busy = await self._try(shape, row, volumes)
        if node is None and busy and not self.holds:
            await node_store.lock(self._tx, busy[0])
            self.holds = True
            node, busy = await self._try(shape, row, volumes)
        self.found = node is not None
        if node is None and not busy:
            self._in_vain[key] = await self._why(shape, row, volumes)
            return self._in_vain[key]
        return node

    async def _try(
        self, shape: Shape, row: AllocationView, volumes: WantedVolumes
    ) -> tuple[NodeView | None, list[str]]:
        """The first that can be had without waiting, and those that could not be looked at."""
        busy: list[str] = []
        passed_over: list[str] = []
        wanted = (shape.kind.value, shapes.sizes(shape), row.image, volumes.places())
        while (id := await node_store.find_with_room(self._tx, *wanted, passed_over)) is not None:
            node = await node_store.try_lock(self._tx, id)
            if node is None:
                busy.append(id)
            else:
                self.holds = True
                if node.shown_status == NodeStatus.READY and not shapes.shortage(node, shape, row.image):
                    return node, busy
            passed_over.append(id)
        return None, busy

    async def _why(self, shape: Shape, row: AllocationView, volumes: WantedVolumes) -> str:
        places, bond = volumes.places(), volumes.bond()
        ready = [node for node in await node_store.list_ready(self._tx) if places is None or node.id in places]
        if not ready:
            return f"{bond}, which cannot take it now" if bond else "no node is ready"
        lacks = {node.name: shapes.shortage(node, shape, row.image) for node in ready[:NODES_NAMED]}
        named = [f"{name}: {', '.join(lacking)}" for name, lacking in lacks.items()]
        if len(ready) > NODES_NAMED:
            named.append(f"and {len(ready) - NODES_NAMED} more nodes")
        return f"{bond}, which has no room; {'; '.join(named)}" if bond else "; ".join(named)


async def _place(tx: Transaction, row: AllocationView, search: Search, plan: AddressPlan) -> None:
    if row.shape.kind == ShapeKind.HOST:
        await _place_on_host(tx, row, search, plan)
        return
    subnet = owner_subnet(plan.network_range, row.network_index)
    if subnet is None:
        await _keep_waiting(tx, row, "waiting: the platform's range of addresses has no network left for its owner")
        return
    if not await store.lock_addresses(tx, row.owner_id, wait=not search.holds):
        return
    address = free_address(subnet, await store.list_taken_addresses(tx, row.owner_id))
    if address is None:
        await _keep_waiting(tx, row, "waiting: its owner's network has no free address")
        return
    volumes = await read_wanted(tx, row)
    node = await search.find(volumes.room(row.shape), row, volumes)
    if node is None:
        return
    if isinstance(node, str):
        await _keep_waiting(tx, row, f"waiting for capacity: {node}")
        return
    volumes = await lock_wanted(tx, row)
    if volumes.places() not in (None, [node.id]) or shapes.shortage(node, volumes.room(row.shape), row.image):
        return  # Somebody gave one of them a place meanwhile: the next turn sees that.
    await volumes.take_place(tx, node.id)
    placed = await store.place(tx, row.id, node.id, address, shapes.inventory_of(node).default_image)
    await usage_store.begin(tx, UsageKind.OCCUPIED, placed)
    await record(tx, placed, AllocationEvent.PROVISIONING, f"on node {node.name} at {address}")
    await order_machine(tx, replace(row, node_id=placed.node_id, address=placed.address, image=placed.image), plan)


async def _place_on_host(tx: Transaction, row: AllocationView, search: Search, plan: AddressPlan) -> None:
    """All of the node or nothing: what it has beyond the request counts against the quota, too."""
    node = await search.find(row.shape, row, WantedVolumes([]))
    if node is None:
        return
    if isinstance(node, str):
        await _keep_waiting(tx, row, f"waiting for capacity: {node}")
        return
    whole = shapes.whole_of(node, row.shape)
    more = shapes.growth(row.shape, whole)
    over = [] if row.project_id is None else await over_quota(tx, row.project_id, more)
    if over is None:
        return
    if over:
        reason = f"waiting: the project's quota does not allow all of {node.name}: {'; '.join(over)}"
        await _keep_waiting(tx, row, reason)
        return
    placed = await store.place_on_host(tx, row.id, node.id, whole)
    await usage_store.begin(tx, UsageKind.OCCUPIED, placed)
    await record(tx, placed, AllocationEvent.PROVISIONING, f"node {node.name} as a whole")
    await order_machine(tx, replace(row, node_id=placed.node_id, shape=placed.shape), plan)


async def order_machine(tx: Transaction, row: AllocationView, plan: AddressPlan) -> None:
    if row.shape.kind == ShapeKind.HOST:
        await node_store.order(tx, row, PrepareHost(allocation_id=row.id, principals={}))
    else:
        await order_slice(tx, row, plan)


async def order_slice(tx: Transaction, row: AllocationView, plan: AddressPlan) -> None:
    """Ask the node that the allocation was placed on to make the machine."""
    subnet = owner_subnet(plan.network_range, row.network_index)
    assert subnet is not None
    assert row.address is not None, "the allocation was placed"
    network = ProjectNetwork(
        owner_id=row.owner_id,
        bridge=bridge_name(plan.environment, row.owner_id),
        gateway_cidr=gateway_cidr(subnet),
    )
    spec = CreateSlice(
        allocation_id=row.id,
        hostname=row.hostname,
        shape=row.shape,
        image=row.image,
        network=network,
        address=row.address,
        principals={},
        volumes=await mounts_of_new_machine(tx, row.id) if row.volumes else [],
    )
    await node_store.order(tx, row, spec)


async def _keep_waiting(tx: Transaction, row: AllocationRecord, reason: str) -> None:
    if reason != row.reason:
        waiting = await store.set_status(tx, row.id, AllocationStatus.REQUESTED, reason)
        await record(tx, waiting, AllocationEvent.WAITING, reason)
