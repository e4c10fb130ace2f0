"""Asking for machines: one, or several alike at once."""

from collections.abc import Sequence

from gpuaas_contract import ids
from gpuaas_contract.allocations import (
    Allocation,
    AllocationBatch,
    AllocationBatchCreate,
    AllocationCreate,
    AllocationStatus,
    Shape,
    ShapeKind,
)
from gpuaas_contract.events import AllocationEvent
from gpuaas_contract.nodes import Capacity
from gpuaas_contract.problems import Code, FieldError
from gpuaas_platform.allocations.rules import shapes
from gpuaas_platform.allocations.service import externals
from gpuaas_platform.allocations.service.allocations import name_taken, shown
from gpuaas_platform.allocations.service.placement import AddressPlan, place_waiting
from gpuaas_platform.allocations.storage import allocations as store
from gpuaas_platform.allocations.storage.allocations import record
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.identity.rules.policy import Caller, Permission
from gpuaas_platform.identity.service.quotas import require_quota
from gpuaas_platform.identity.service.tenants import require_owner
from gpuaas_platform.identity.storage import tenants as identity_store
from gpuaas_platform.nodes import storage as node_store
from gpuaas_platform.volumes.service.placement import attach_at_create, confirm_at_create

LONGEST_NAME = 48


async def create_allocation(tx: Transaction, caller: Caller, body: AllocationCreate, plan: AddressPlan) -> Allocation:
    return (await _create(tx, caller, body, [body.name], plan))[0]


async def create_batch(
    tx: Transaction, caller: Caller, body: AllocationBatchCreate, plan: AddressPlan
) -> AllocationBatch:
    names = [f"{body.name}-{number}" for number in range(1, body.count + 1)]
    if len(names[-1]) > LONGEST_NAME:
        raise _invalid("/name", f"{names[-1]} would be longer than {LONGEST_NAME} characters")
    return AllocationBatch(items=await _create(tx, caller, body, names, plan))


async def _create(
    tx: Transaction, caller: Caller, body: AllocationCreate, names: Sequence[str], plan: AddressPlan
) -> list[Allocation]:
    tenant_id = await require_owner(tx, caller, body.project_id, body.tenant_id, Permission.ALLOCATION_CREATE)
    await _require_kind(tx, body, len(names))
    if body.project_id is None:
        await identity_store.ensure_network(tx, tenant_id)
    else:
        each = shapes.sizes(body.shape) | {"allocations": 1}
        await require_quota(tx, body.project_id, {what: number * len(names) for what, number in each.items()})
    await _require_image(tx, body.image)
    # Ids of one moment come in no order: lists show the machines in that of their names.
    made = dict(zip(sorted(ids.new_id(ids.ALLOCATION) for _ in names), names, strict=True))
    rows = [
        await store.insert(tx, id, tenant_id, body.project_id, name, body.shape, body.image)
        for id, name in made.items()
    ]
    if taken := [name for name, row in zip(names, rows, strict=True) if row is None]:
        raise name_taken(*taken)
    for row in rows:
        assert row is not None
        await tx.audit_owned("allocation.create", row)
        await record(tx, row, AllocationEvent.REQUESTED, shapes.words(body.shape))
        await attach_at_create(tx, caller, row, body.volumes)
        if body.shape.external is not None:
            await externals.activate(tx, row)
    if body.shape.external is None:
        await place_waiting(tx, plan, only=list(made))
    if body.volumes:
        await confirm_at_create(tx, list(made))
    asked = [await shown(tx, id) for id in made]
    if any(allocation.status == AllocationStatus.REQUESTED for allocation in asked):
        await _require_possible(tx, body.shape, body.image)
    return asked


async def _require_kind(tx: Transaction, body: AllocationCreate, count: int) -> None:
    """Refuse what makes no sense for this kind of machine: it is a mistake, not something to leave out silently."""
    if body.image is not None and body.shape.kind != ShapeKind.SLICE:
        raise _invalid("/image", "only slices are made from an image")
    if body.shape.external is None:
        return
    if count > 1:
        raise _invalid("/count", "an external machine is one machine")
    if body.project_id is None:
        raise _invalid("/tenant_id", "an external machine belongs to a project, whose credential opens it")
    await externals.require_credential(tx, body.project_id, body.shape.external)


def _invalid(pointer: str, detail: str) -> Refusal:
    return Refusal(Code.INVALID_REQUEST, detail, errors=[FieldError(pointer=pointer, detail=detail)])


async def _require_image(tx: Transaction, image: str | None) -> None:
    """One that only nodes have which are not ready now is waited for; one that none has is a mistake."""
    if image is None:
        return
    known = sorted({name for node in await node_store.list_enrolled(tx) for name in node.inventory.images})
    if image not in known:
        detail = f"no node has an image {image}; there is: {', '.join(known) or 'none'}"
        pointer = FieldError(pointer="/image", detail=detail)
        raise Refusal(Code.IMAGE_UNKNOWN, detail, errors=[pointer], context={"images": known})


async def _require_possible(tx: Transaction, shape: Shape, image: str | None) -> None:
    """Waiting must have an end: refuse what no node could carry, however much is given back."""
    nodes = [node.inventory for node in await node_store.list_enrolled(tx)]
    nodes = [node for node in nodes if shape.kind in node.offers and (image is None or image in node.images)]
    lacking = [(_too_small(node.capacity, shape), node.capacity) for node in nodes]
    # With no node yet, nothing is known of what the first will have.
    if not lacking or any(not lacks for lacks, _ in lacking):
        return
    lacks, largest = min(lacking, key=lambda pair: (len(pair[0]), -pair[1].cpus, -pair[1].memory_mib))
    detail = f"no node is large enough; the largest has {shapes.words(largest)}"
    errors = [FieldError(pointer=f"/shape/{name}", detail=f"the largest node has {has}") for name, has in lacks.items()]
    raise Refusal(Code.SHAPE_TOO_LARGE, detail, errors=errors, context={"largest": largest.model_dump()})


def _too_small(capacity: Capacity, shape: Shape) -> dict[str, int]:
    """List the sizes of which even an empty node has too little, and how much it has."""
    return {name: has for name, has in capacity.model_dump().items() if has < getattr(shape, name)}
