"""Allocations: looked at, renamed, restarted, tried again, given back."""

from collections.abc import Sequence

from gpuaas_contract.allocations import (
    Activity,
    Allocation,
    AllocationPage,
    AllocationRelease,
    AllocationRestart,
    AllocationStatus,
    AllocationUpdate,
    ShapeKind,
    Timeline,
    TimelineEntry,
)
from gpuaas_contract.events import AllocationEvent
from gpuaas_contract.offers import Offer
from gpuaas_contract.problems import AllowedAction, Code
from gpuaas_contract.usage import UsageKind
from gpuaas_platform.access.service.grants import end_of_allocation
from gpuaas_platform.allocations.records import AllocationFilter, AllocationRecord, AllocationView
from gpuaas_platform.allocations.rules import shapes
from gpuaas_platform.allocations.rules.allocations import require_allocation, scope_of
from gpuaas_platform.allocations.service import externals
from gpuaas_platform.allocations.service.placement import AddressPlan, order_machine
from gpuaas_platform.allocations.storage import allocations as store
from gpuaas_platform.allocations.storage import usage as usage_store
from gpuaas_platform.allocations.storage.allocations import record
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.core.pages import cut_page, decode_cursor
from gpuaas_platform.core.records import to_wire
from gpuaas_platform.identity.rules.policy import Caller, Permission
from gpuaas_platform.identity.service.tenants import visible_owners
from gpuaas_platform.instances.records import MachineUser
from gpuaas_platform.instances.storage import instances as instance_store
from gpuaas_platform.nodes import storage as node_store
from gpuaas_platform.nodes.storage import order
from gpuaas_platform.volumes.service.results import begin_release, machine_gone

_RELEASABLE = {
    AllocationStatus.REQUESTED,
    AllocationStatus.PROVISIONING,
    AllocationStatus.ACTIVE,
    AllocationStatus.FAILED,
    AllocationStatus.RELEASE_FAILED,
}


def to_model(row: AllocationView) -> Allocation:
    return to_wire(Allocation, row, allowed_actions=_actions(row))


def _actions(row: AllocationView) -> list[AllowedAction]:
    status, charged = row.status, row.charged_from is not None
    offers = []
    if status == AllocationStatus.ACTIVE and row.activity is None:
        changes = [
            (Offer.RESTART_ALLOCATION, "restart", "Restart it in place"),
            (Offer.RESIZE_ALLOCATION, "resize", "Give it another size"),
        ]
        offers += [change for change in changes if shapes.supports(row, change[1])]
    if status == AllocationStatus.RELEASE_FAILED or (status == AllocationStatus.FAILED and not charged):
        offers += [(Offer.RETRY_ALLOCATION, "retry", "Try again")]
    if status in _RELEASABLE:
        offers += [(Offer.RELEASE_ALLOCATION, "release", "Give it back")]
    return [offer.action(name, title, allocation_id=row.id) for offer, name, title in offers]


async def shown(tx: Transaction, allocation_id: str) -> Allocation:
    row = await store.get(tx, allocation_id)
    assert row is not None
    return to_model(row)


def name_taken(*names: str) -> Refusal:
    listed = ", ".join(repr(name) for name in names)
    return Refusal(Code.NAME_TAKEN, f"there is a machine with the name or host name {listed} here already")


async def get_allocation(tx: Transaction, caller: Caller, allocation_id: str) -> Allocation:
    return to_model(
        require_allocation(await store.get(tx, allocation_id), allocation_id, caller, Permission.ALLOCATION_READ)
    )


async def list_allocations(
    tx: Transaction,
    caller: Caller,
    project_id: str | None,
    tenant_id: str | None,
    filters: AllocationFilter,
    cursor: str | None,
    limit: int,
) -> AllocationPage:
    """Of a project, of a tenant itself, or all that the caller may see."""
    owners = await visible_owners(tx, caller, project_id, tenant_id, Permission.ALLOCATION_READ)
    rows = await store.list_matching(tx, owners, filters, decode_cursor(cursor), limit + 1)
    rows, after = cut_page(rows, limit)
    return AllocationPage(items=[to_model(row) for row in rows], next_cursor=after)


async def get_timeline(
    tx: Transaction, caller: Caller, allocation_id: str, step: str | None, correlation_id: str | None
) -> Timeline:
    require_allocation(await store.get(tx, allocation_id), allocation_id, caller, Permission.ALLOCATION_READ)
    entries = await store.timeline(tx, allocation_id, step, correlation_id)
    return Timeline(items=[to_wire(TimelineEntry, entry) for entry in entries])


async def update_allocation(tx: Transaction, caller: Caller, allocation_id: str, body: AllocationUpdate) -> Allocation:
    row = require_allocation(await store.lock(tx, allocation_id), allocation_id, caller, Permission.ALLOCATION_UPDATE)
    tx.match(row)
    if row.status == AllocationStatus.RELEASED:
        raise Refusal(Code.INVALID_STATE, "the allocation is released; its name is history")
    renamed = await store.rename(tx, allocation_id, body.name)
    if renamed is None:
        raise name_taken(body.name)
    await tx.audit_owned("allocation.update", row, detail={"name": body.name})
    await record(
        tx, renamed, AllocationEvent.RENAMED, f"from {row.name} to {body.name}; its host name stays {row.hostname}"
    )
    return await shown(tx, allocation_id)


async def restart_allocation(
    tx: Transaction, caller: Caller, allocation_id: str, body: AllocationRestart
) -> Allocation:
    row = require_allocation(await store.lock(tx, allocation_id), allocation_id, caller, Permission.ALLOCATION_UPDATE)
    tx.match(row)
    shapes.require_support(row, "restart")
    require_at_rest(row)
    if not body.force:
        await require_unused(tx, row, "restart it with force, or decommission that first")
    await tx.audit_owned("allocation.restart", row)
    changed = await store.begin_activity(tx, allocation_id, Activity.RESTARTING, None)
    await record(tx, changed, AllocationEvent.RESTARTING, "restart accepted")
    await order(tx, row, shapes.restart(row))
    return await shown(tx, allocation_id)


async def retry_allocation(tx: Transaction, caller: Caller, allocation_id: str, plan: AddressPlan) -> Allocation:
    """A creation that failed is tried again on its node; a release that failed is ordered again."""
    row = require_allocation(await store.lock(tx, allocation_id), allocation_id, caller, Permission.ALLOCATION_UPDATE)
    tx.match(row)
    if "retry" not in {action.action for action in _actions(row)}:
        lost = row.status == AllocationStatus.FAILED
        why = "its machine was lost: release it and ask for another" if lost else "there is nothing to try again"
        raise Refusal(Code.INVALID_STATE, f"the allocation is {row.status}; {why}")
    await tx.audit_owned("allocation.retry", row)
    if row.status == AllocationStatus.RELEASE_FAILED:
        await _order_release(tx, row, "the release is tried again")
    else:
        again = await store.set_status(tx, allocation_id, AllocationStatus.PROVISIONING)
        await record(tx, again, AllocationEvent.PROVISIONING, "the creation is tried again")
        await order_machine(tx, row, plan)
    return await shown(tx, allocation_id)


async def release_allocation(
    tx: Transaction, caller: Caller, allocation_id: str, body: AllocationRelease
) -> Allocation:
    row = require_allocation(await store.lock(tx, allocation_id), allocation_id, caller, Permission.ALLOCATION_RELEASE)
    tx.match(row)
    if row.status not in _RELEASABLE:
        raise Refusal(Code.INVALID_STATE, f"the allocation is {row.status} already")
    if not body.force:
        await require_unused(tx, row, "remove its member or decommission that first, or release it with force")
    if body.delete_volumes:
        caller.require(Permission.VOLUME_DELETE, scope_of(row), "allocation", allocation_id)
    await tx.audit_owned("allocation.release", row, body.model_dump())
    await node_store.cancel_tasks(tx, allocation_id)
    await end_of_allocation(tx, allocation_id)
    await usage_store.end(tx, UsageKind.CHARGED, allocation_id)
    if row.shape.kind == ShapeKind.EXTERNAL:
        await externals.release(tx, row)
        return await shown(tx, allocation_id)
    await begin_release(tx, row, delete=body.delete_volumes)
    if row.node_id is None:
        await machine_gone(tx, allocation_id)
        released = await store.set_status(tx, allocation_id, AllocationStatus.RELEASED)
        await record(tx, released, AllocationEvent.RELEASED, "it had no machine yet")
    else:
        await _order_release(tx, row, "release accepted; it is not charged any more")
    return await shown(tx, allocation_id)


async def _order_release(tx: Transaction, row: AllocationRecord, message: str) -> None:
    releasing = await store.set_status(tx, row.id, AllocationStatus.RELEASING)
    await record(tx, releasing, AllocationEvent.RELEASING, message)
    await order(tx, row, shapes.removal(row))


def require_at_rest(row: AllocationRecord) -> None:
    if row.status != AllocationStatus.ACTIVE:
        raise Refusal(Code.INVALID_STATE, f"the allocation is {row.status}, not active")
    if row.activity is not None:
        asking = "waiting for its app to agree to a resize"
        doing = asking if row.activity == Activity.ASKING else row.activity
        raise Refusal(Code.INVALID_STATE, f"the machine is {doing} already")


async def require_unused(tx: Transaction, row: AllocationRecord, advice: str) -> None:
    if users := await instance_store.list_live_on(tx, [row.id]):
        raise in_use(users, advice)


def in_use(users: Sequence[MachineUser], advice: str, *actions: AllowedAction) -> Refusal:
    names = sorted({user.instance_name for user in users})
    decommission = [
        Offer.REQUEST_OPERATION.action("decommission", f"Decommission {name}", instance_id=instance_id)
        for instance_id, name in sorted({(user.instance_id, user.instance_name) for user in users})
    ]
    detail = f"the machine is used by {', '.join(names)}; {advice}"
    return Refusal(Code.ALLOCATION_IN_USE, detail, allowed_actions=[*decommission, *actions])
