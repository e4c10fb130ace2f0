"""Kinds of machines and their differences: which node suits, which tasks its agent gets, which actions are possible."""

from gpuaas_contract.agent_link import ClearHost, DeleteSlice, RestartHost, RestartSlice
from gpuaas_contract.allocations import Shape, ShapeKind
from gpuaas_contract.base import Resource
from gpuaas_contract.nodes import Capacity, Inventory
from gpuaas_contract.problems import Code
from gpuaas_platform.allocations.records import AllocationRecord
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.nodes.records import NodeView

_OFFERED = {ShapeKind.SLICE: "slices", ShapeKind.HOST: "itself as a whole"}
_NAMES = {ShapeKind.SLICE: "a slice", ShapeKind.HOST: "a whole host", ShapeKind.EXTERNAL: "an external machine"}
_UNSUPPORTED = {
    (ShapeKind.HOST, "resize"): "it is as large as it is",
    (ShapeKind.HOST, "attach"): "volumes lie beside the slices of a node",
    (ShapeKind.EXTERNAL, "attach"): "volumes lie on nodes of the platform",
    (ShapeKind.EXTERNAL, "resize"): "the platform does not make it",
    (ShapeKind.EXTERNAL, "restart"): "no agent of the platform is on it",
    (ShapeKind.EXTERNAL, "access"): "it does not trust the project's SSH authority, so there is no certificate for"
    " people; log in with a key of your own",
    (
        ShapeKind.EXTERNAL,
        "tunnel",
    ): "no agent of the platform is on it; forward the port over SSH with a key of your own, as `gpuaas tunnel` does",
    (ShapeKind.EXTERNAL, "delivery"): "no agent of the platform is on it",
}


def supports(row: AllocationRecord, action: str) -> bool:
    return (row.shape.kind, action) not in _UNSUPPORTED


def require_support(row: AllocationRecord, action: str) -> None:
    if not supports(row, action):
        kind = row.shape.kind
        detail = f"{row.name} is {_NAMES[kind]}: {action} is not possible, {_UNSUPPORTED[kind, action]}"
        raise Refusal(Code.SHAPE_UNSUPPORTED, detail, context={"kind": kind, "action": action})


def inventory_of(node: NodeView) -> Inventory:
    assert node.inventory is not None, f"node {node.name} has not said yet what it has"
    return node.inventory


def misfit(node: NodeView, shape: Shape) -> str | None:
    """Why the node is none for this kind of machine at all, whatever room it has."""
    offers = inventory_of(node).offers
    if shape.kind not in offers:
        words = " and ".join(_OFFERED.get(offer, offer.value) for offer in offers)
        return f"offers {words}, not {_NAMES[shape.kind]}"
    if shape.kind == ShapeKind.HOST and node.cpus:
        return "is taken as a whole"
    return None


def whole_of(node: NodeView, shape: Shape) -> Shape:
    """Return the shape of the whole node, which has at least what was asked for."""
    return shape.model_copy(update=inventory_of(node).capacity.model_dump())


def sizes(shape: Shape) -> dict[str, int]:
    return {"cpus": shape.cpus, "memory_mib": shape.memory_mib, "disk_gib": shape.disk_gib, "gpus": shape.gpus}


def growth(old: Shape, new: Shape) -> dict[str, int]:
    before = sizes(old)
    return {name: size - before[name] for name, size in sizes(new).items()}


def removal(row: AllocationRecord) -> Resource:
    if row.shape.kind == ShapeKind.HOST:
        return ClearHost(allocation_id=row.id)
    return DeleteSlice(allocation_id=row.id)


def restart(row: AllocationRecord) -> Resource:
    if row.shape.kind == ShapeKind.HOST:
        return RestartHost(allocation_id=row.id)
    return RestartSlice(allocation_id=row.id)


def shortage(node: NodeView, shape: Shape, image: str | None = None) -> list[str]:
    """List in plain words what the node lacks for the shape; nothing where it has room."""
    if (reason := misfit(node, shape)) is not None:
        return [reason]
    inventory = inventory_of(node)
    capacity = inventory.capacity
    free = {
        "CPUs": (capacity.cpus - node.cpus, shape.cpus),
        "MiB of memory": (capacity.memory_mib - node.memory_mib, shape.memory_mib),
        "GiB of disk": (capacity.disk_gib - node.disk_gib, shape.disk_gib),
        "GPUs": (capacity.gpus - node.gpus, shape.gpus),
    }
    lacking = [f"{has} {what} free, {needs} needed" for what, (has, needs) in free.items() if 0 < needs > has]
    return lacking if image is None or image in inventory.images else [f"it has no image {image}", *lacking]


def words(shape: Shape | Capacity) -> str:
    return f"{shape.cpus} CPUs, {shape.memory_mib} MiB, {shape.disk_gib} GiB of disk, {shape.gpus} GPUs"
