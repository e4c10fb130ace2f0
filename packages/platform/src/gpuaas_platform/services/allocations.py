"""Allocations: asked for, looked at, renamed, restarted, resized, tried again, given back."""

from gpuaas_contract import ids
from gpuaas_contract.agent_link import DeleteSlice, ResizeSlice, RestartSlice
from gpuaas_contract.allocations import (
    Activity,
    Allocation,
    AllocationCreate,
    AllocationPage,
    AllocationRelease,
    AllocationResize,
    AllocationRestart,
    AllocationStatus,
    AllocationUpdate,
    Shape,
    Timeline,
    TimelineEntry,
)
from gpuaas_contract.problems import AllowedAction, Code, FieldError
from gpuaas_contract.usage import UsageKind
from gpuaas_platform.domain.errors import Refusal, not_found
from gpuaas_platform.domain.policy import Caller, Permission, Scope
from gpuaas_platform.services.identity import require_project, visible_projects
from gpuaas_platform.services.pages import cut_page, decode_cursor
from gpuaas_platform.services.placement import AddressPlan, order, order_slice, place_waiting, shortage
from gpuaas_platform.services.quotas import require_quota
from gpuaas_platform.services.timeline import record
from gpuaas_platform.services.volume_placement import attach_at_create, confirm_at_create
from gpuaas_platform.services.volume_results import begin_release, machine_gone
from gpuaas_platform.storage import allocations as store
from gpuaas_platform.storage import instances as instance_store
from gpuaas_platform.storage import nodes as node_store
from gpuaas_platform.storage import usage as usage_store
from gpuaas_platform.storage.database import Row, Transaction

_RELEASABLE = {
    AllocationStatus.REQUESTED,
    AllocationStatus.PROVISIONING,
    AllocationStatus.ACTIVE,
    AllocationStatus.FAILED,
    AllocationStatus.RELEASE_FAILED,
}


def to_model(row: Row) -> Allocation:
    return Allocation.model_validate({**row, "allowed_actions": _actions(row)})


def _actions(row: Row) -> list[AllowedAction]:
    status, charged = row["status"], row["charged_from"] is not None
    names = []
    if status == AllocationStatus.ACTIVE and row["activity"] is None:
        names += [("restart", "Restart it in place"), ("resize", "Give it another size")]
    if status == AllocationStatus.RELEASE_FAILED or (status == AllocationStatus.FAILED and not charged):
        names += [("retry", "Try again")]
    if status in _RELEASABLE:
        names += [("release", "Give it back")]
    path = f"/v1/allocations/{row['id']}"
    return [AllowedAction(action=name, title=title, method="POST", href=f"{path}/{name}") for name, title in names]


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


async def _shown(tx: Transaction, allocation_id: str) -> Allocation:
    row = await store.get(tx, allocation_id)
    assert row is not None
    return to_model(row)


async def create_allocation(tx: Transaction, caller: Caller, body: AllocationCreate, plan: AddressPlan) -> Allocation:
    await require_project(tx, caller, body.project_id, Permission.ALLOCATION_CREATE)
    await require_quota(tx, body.project_id, body.shape.model_dump(exclude={"kind"}) | {"allocations": 1})
    shape = body.shape.model_dump(mode="json")
    row = await store.insert(tx, ids.new_id(ids.ALLOCATION), body.project_id, body.name, body.name, shape)
    if row is None:
        raise _name_taken(body.name)
    await tx.audit("allocation.create", row["id"], project_id=body.project_id)
    await record(tx, row, "requested", _words(body.shape))
    await attach_at_create(tx, caller, row, body.volumes)
    await place_waiting(tx, plan)
    if body.volumes:
        await confirm_at_create(tx, row["id"])
    return await _shown(tx, row["id"])


def _words(shape: Shape) -> str:
    return f"{shape.cpus} CPUs, {shape.memory_mib} MiB, {shape.disk_gib} GiB of disk, {shape.gpus} GPUs"


def _name_taken(name: str) -> Refusal:
    return Refusal(Code.NAME_TAKEN, f"the project has a machine with the name or host name {name!r} already")


async def get_allocation(tx: Transaction, caller: Caller, allocation_id: str) -> Allocation:
    return to_model(await require_allocation(tx, caller, allocation_id, Permission.ALLOCATION_READ))


async def list_allocations(
    tx: Transaction, caller: Caller, project_id: str | None, filters: store.Filters, cursor: str | None, limit: int
) -> AllocationPage:
    projects = await visible_projects(tx, caller, project_id, Permission.ALLOCATION_READ)
    rows = await store.list_matching(tx, projects, filters, decode_cursor(cursor), limit + 1)
    rows, after = cut_page(rows, limit)
    return AllocationPage(items=[to_model(row) for row in rows], next_cursor=after)


async def get_timeline(tx: Transaction, caller: Caller, allocation_id: str) -> Timeline:
    await require_allocation(tx, caller, allocation_id, Permission.ALLOCATION_READ)
    entries = await store.timeline(tx, allocation_id)
    return Timeline(items=[TimelineEntry.model_validate(entry) for entry in entries])


async def update_allocation(tx: Transaction, caller: Caller, allocation_id: str, body: AllocationUpdate) -> Allocation:
    row = await require_allocation(tx, caller, allocation_id, Permission.ALLOCATION_UPDATE, lock=True)
    tx.match(row)
    if row["status"] == AllocationStatus.RELEASED:
        raise Refusal(Code.INVALID_STATE, "the allocation is released; its name is history")
    renamed = await store.rename(tx, allocation_id, body.name)
    if renamed is None:
        raise _name_taken(body.name)
    await tx.audit("allocation.update", allocation_id, project_id=row["project_id"], detail={"name": body.name})
    await record(tx, renamed, "renamed", f"from {row['name']} to {body.name}; its host name stays {row['hostname']}")
    return await _shown(tx, allocation_id)


async def restart_allocation(
    tx: Transaction, caller: Caller, allocation_id: str, body: AllocationRestart
) -> Allocation:
    row = await require_allocation(tx, caller, allocation_id, Permission.ALLOCATION_UPDATE, lock=True)
    tx.match(row)
    _require_at_rest(row)
    if not body.force:
        await _require_unused(tx, row, "restart it with force, or decommission that first")
    await tx.audit("allocation.restart", allocation_id, project_id=row["project_id"])
    changed = await store.begin_activity(tx, allocation_id, Activity.RESTARTING, None)
    await record(tx, changed, "restarting", "restart accepted")
    await order(tx, row, RestartSlice(allocation_id=allocation_id))
    return await _shown(tx, allocation_id)


async def resize_allocation(tx: Transaction, caller: Caller, allocation_id: str, body: AllocationResize) -> Allocation:
    row = await require_allocation(tx, caller, allocation_id, Permission.ALLOCATION_UPDATE, lock=True)
    tx.match(row)
    _require_at_rest(row)
    old = Shape.model_validate(row["shape"])
    new = old.model_copy(update=body.model_dump(exclude_none=True))
    if new == old:
        return to_model(row)
    if new.disk_gib < old.disk_gib:
        detail = f"a disk only grows: it has {old.disk_gib} GiB"
        raise Refusal(Code.INVALID_REQUEST, detail, errors=[FieldError(pointer="/disk_gib", detail=detail)])
    # Nobody can ask the app yet what a smaller or larger machine means to it.
    await _require_unused(tx, row, "decommission that first")
    growth = _growth(old, new)
    await require_quota(tx, row["project_id"], growth.model_dump(exclude={"kind"}) | {"allocations": 0})
    node = await node_store.lock(tx, row["node_id"])
    assert node is not None
    if lacking := shortage(node, growth):
        words = ", ".join(lacking)
        raise Refusal(Code.NO_CAPACITY, f"its node has no room for that much more: {words}", context={"lacks": lacking})
    await tx.audit("allocation.resize", allocation_id, project_id=row["project_id"], detail=new.model_dump(mode="json"))
    changed = await store.begin_activity(tx, allocation_id, Activity.RESIZING, new.model_dump(mode="json"))
    await record(tx, changed, "resizing", f"from {_words(old)} to {_words(new)}")
    await order(tx, row, ResizeSlice(allocation_id=allocation_id, shape=new))
    return await _shown(tx, allocation_id)


def _growth(old: Shape, new: Shape) -> Shape:
    more = {
        name: max(0, getattr(new, name) - getattr(old, name)) for name in ("cpus", "memory_mib", "disk_gib", "gpus")
    }
    return old.model_copy(update=more)


async def retry_allocation(tx: Transaction, caller: Caller, allocation_id: str, plan: AddressPlan) -> Allocation:
    """A creation that failed is tried again on its node; a release that failed is ordered again."""
    row = await require_allocation(tx, caller, allocation_id, Permission.ALLOCATION_UPDATE, lock=True)
    tx.match(row)
    if "retry" not in {action.action for action in _actions(row)}:
        lost = row["status"] == AllocationStatus.FAILED
        why = "its machine was lost: release it and ask for another" if lost else "there is nothing to try again"
        raise Refusal(Code.INVALID_STATE, f"the allocation is {row['status']}; {why}")
    await tx.audit("allocation.retry", allocation_id, project_id=row["project_id"])
    if row["status"] == AllocationStatus.RELEASE_FAILED:
        await _order_release(tx, row, "the release is tried again")
    else:
        again = await store.set_status(tx, allocation_id, AllocationStatus.PROVISIONING)
        await record(tx, again, "provisioning", "the creation is tried again")
        await order_slice(tx, {**row, **again}, plan, tx.correlation_id)
    return await _shown(tx, allocation_id)


async def release_allocation(
    tx: Transaction, caller: Caller, allocation_id: str, body: AllocationRelease
) -> Allocation:
    row = await require_allocation(tx, caller, allocation_id, Permission.ALLOCATION_RELEASE, lock=True)
    tx.match(row)
    if row["status"] not in _RELEASABLE:
        raise Refusal(Code.INVALID_STATE, f"the allocation is {row['status']} already")
    await _require_unused(tx, row, "decommission that first")
    if body.delete_volumes:
        caller.require(Permission.VOLUME_DELETE, _scope(row), "allocation", allocation_id)
    await tx.audit("allocation.release", allocation_id, project_id=row["project_id"], detail=body.model_dump())
    await node_store.cancel_tasks(tx, allocation_id)
    await usage_store.end(tx, UsageKind.CHARGED, allocation_id)
    await begin_release(tx, row, delete=body.delete_volumes)
    if row["node_id"] is None:
        await machine_gone(tx, allocation_id)
        released = await store.set_status(tx, allocation_id, AllocationStatus.RELEASED)
        await record(tx, released, "released", "it had no machine yet")
    else:
        await _order_release(tx, row, "release accepted; it is not charged any more")
    return await _shown(tx, allocation_id)


async def _order_release(tx: Transaction, row: Row, message: str) -> None:
    releasing = await store.set_status(tx, row["id"], AllocationStatus.RELEASING)
    await record(tx, releasing, "releasing", message)
    await order(tx, row, DeleteSlice(allocation_id=row["id"]))


def _require_at_rest(row: Row) -> None:
    if row["status"] != AllocationStatus.ACTIVE:
        raise Refusal(Code.INVALID_STATE, f"the allocation is {row['status']}, not active")
    if row["activity"] is not None:
        raise Refusal(Code.INVALID_STATE, f"the machine is {row['activity']} already")


async def _require_unused(tx: Transaction, row: Row, advice: str) -> None:
    users = await instance_store.list_live_on(tx, [row["id"]])
    if not users:
        return
    names = sorted({user["instance_name"] for user in users})
    raise Refusal(
        Code.ALLOCATION_IN_USE,
        f"the machine is used by {', '.join(names)}; {advice}",
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
