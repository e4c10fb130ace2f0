"""Wait for asynchronous work, woken by the change feed, and show its progress."""

import asyncio
from collections.abc import AsyncIterator, Callable, Collection
from typing import TYPE_CHECKING

from gpuaas_cli.errors import WAITED_TOO_LONG, WORK_FAILED, CliError, next_command
from gpuaas_cli.live import Progress
from gpuaas_cli.output import clean, note, text
from gpuaas_contract.allocations import Allocation, AllocationStatus
from gpuaas_contract.bulk import Bulk, BulkState
from gpuaas_contract.instances import Instance, InstanceStatus
from gpuaas_contract.operations import Operation, OperationState
from gpuaas_contract.problems import AllowedAction
from gpuaas_contract.volumes import AttachmentStatus, Volume, VolumeStatus
from gpuaas_sdk.errors import CursorExpiredError, TransportError, UnavailableError

if TYPE_CHECKING:
    from gpuaas_cli.session import Session

LOOK_AGAIN_SECONDS = 10
AWAY_SECONDS = 1.0


async def poll(
    session: "Session",
    what: str,
    timeout: float,
    *,
    tenant_id: str | None = None,
    project_id: str | None = None,
    instance_id: str | None = None,
) -> AsyncIterator[None]:
    """Yield at once, then whenever something may have changed; outlast a restart of the platform."""
    loop = asyncio.get_running_loop()
    ends_at = loop.time() + timeout
    feed = session.client.changes(tenant_id=tenant_id, project_id=project_id, instance_id=instance_id)
    away = False
    while True:
        left = ends_at - loop.time()
        if left <= 0:
            raise CliError(
                f"{what} is not finished after {timeout:.0f} s; it continues in the background", WAITED_TOO_LONG
            )
        try:
            await feed.page(wait=0 if feed.cursor is None else max(1, int(min(LOOK_AGAIN_SECONDS, left))))
            yield
            away = False
        except CursorExpiredError:
            feed.cursor = None
        except (TransportError, UnavailableError) as error:
            if not away:
                note(f"  the platform does not answer; still waiting: {error}")
            away = True
            await asyncio.sleep(min(AWAY_SECONDS, max(left, 0)))


async def wait_for_operation(session: "Session", operation: Operation, timeout: float) -> Operation:
    what = f"operation {operation.id}"
    async with Progress() as progress:
        scope = {"project_id": operation.project_id, "instance_id": operation.instance_id}
        async for _ in poll(session, what, timeout, **scope):
            operation = await session.client.operations.get(operation.id)
            progress.show([operation])
            if operation.state.is_final:
                break
    return operation


async def wait_for_bulk(session: "Session", bulk: Bulk, timeout: float) -> Bulk:
    async with Progress() as progress:
        scope = {"project_id": bulk.project_id, "instance_id": bulk.instance_id}
        async for _ in poll(session, f"{bulk.kind} of {len(bulk.results)} members", timeout, **scope):
            bulk = await session.client.bulk_operations.get(bulk.id)
            ids = {result.operation_id for result in bulk.results if result.operation_id is not None}
            operations = await session.client.operations.list(instance_id=bulk.instance_id).all()
            progress.show([operation for operation in operations if operation.id in ids])
            if bulk.state != BulkState.RUNNING:
                break
    return bulk


async def wait_for_instance(
    session: "Session", instance: Instance, goals: Collection[InstanceStatus], timeout: float
) -> Instance:
    """Wait until the instance has no unfinished operation: it has one of the statuses then, or will not reach it."""
    what = f"instance {instance.name}"
    client = session.client
    known = {
        o.id
        for o in await client.operations.list(project_id=instance.project_id, instance_id=instance.id).all()
        if o.state.is_final
    }
    async with Progress() as progress:
        scope = {"project_id": instance.project_id, "instance_id": instance.id}
        async for _ in poll(session, what, timeout, **scope):
            operations = await client.operations.list(project_id=instance.project_id, instance_id=instance.id).all()
            progress.show([o for o in operations if o.id not in known])
            instance = await client.instances.get(instance.id)
            is_idle = all(operation.state.is_final for operation in operations)
            if is_idle and (instance.status in goals or instance.status != InstanceStatus.DEPLOYING):
                break
    return instance


def _feed_scope(allocation: Allocation) -> dict[str, str | None]:
    """Return the scope of the change feed that has the allocation's changes."""
    return {"tenant_id": allocation.tenant_id, "project_id": allocation.project_id}


async def wait_for_allocation(
    session: "Session", allocation: Allocation, goal: AllocationStatus, timeout: float
) -> Allocation:
    return (await wait_for_allocations(session, [allocation], goal, timeout))[0]


async def wait_for_allocations(
    session: "Session", allocations: list[Allocation], goal: AllocationStatus, timeout: float
) -> list[Allocation]:
    """Wait until each has reached the goal or failed. With several, each line names the allocation."""
    ends = {goal, AllocationStatus.FAILED, AllocationStatus.RELEASE_FAILED}
    now = {allocation.id: allocation for allocation in allocations}
    what = f"allocation {', '.join(allocation.name for allocation in allocations)}"
    under_way = list(now)
    async with Progress() as progress:
        async for _ in poll(session, what, timeout, **_feed_scope(allocations[0])):
            for id in under_way:
                whose = f"{now[id].name}  " if len(now) > 1 else ""
                # Read the status before the steps, so that the last step is shown, too.
                now[id] = await session.client.allocations.get(id)
                for entry in (await session.client.allocations.timeline(id)).items:
                    line = f"  {text(entry.at)[11:]}  {whose}{text(entry.step)}  {text(entry.message)}".rstrip()
                    progress.once((id, str(entry.at), entry.step, entry.message), line)
            under_way = [id for id in under_way if now[id].status not in ends]
            if not under_way:
                break
    for allocation in now.values():
        if allocation.status != goal:
            raise CliError(
                f"allocation {allocation.name} is {allocation.status}: {allocation.reason}",
                WORK_FAILED,
                hint=f"gpuaas allocation timeline {allocation.id}",
            )
    return list(now.values())


async def wait_until_idle(session: "Session", allocation: Allocation, timeout: float) -> Allocation:
    """Wait until an active machine's activity ends; raise its reason if it failed."""
    async with Progress() as progress:
        begun = allocation.updated_at
        async for _ in poll(session, f"allocation {allocation.name}", timeout, **_feed_scope(allocation)):
            for entry in (await session.client.allocations.timeline(allocation.id)).items:
                if entry.at >= begun:
                    line = f"  {text(entry.at)[11:]}  {text(entry.step)}  {text(entry.message)}".rstrip()
                    progress.once((str(entry.at), entry.step, entry.message), line)
            allocation = await session.client.allocations.get(allocation.id)
            if allocation.activity is None:
                break
    if allocation.reason:
        hint = f"gpuaas allocation timeline {allocation.id}"
        raise CliError(f"allocation {allocation.name}: {allocation.reason}", WORK_FAILED, hint=hint)
    return allocation


async def wait_for_volume(
    session: "Session", volume: Volume, done: Callable[[Volume], bool], timeout: float, *, allocation_id: str = ""
) -> Volume:
    """Wait until `done` or a failure; show the steps on the given machine."""
    begun = volume.updated_at
    async with Progress() as progress:
        async for _ in poll(session, f"volume {volume.name}", timeout, project_id=volume.project_id):
            if allocation_id:
                for entry in (await session.client.allocations.timeline(allocation_id)).items:
                    if entry.at >= begun:
                        line = f"  {text(entry.at)[11:]}  {text(entry.step)}  {text(entry.message)}".rstrip()
                        progress.once((str(entry.at), entry.step, entry.message), line)
            volume = await session.client.volumes.get(volume.id)
            progress.once((volume.status,), f"  {text(volume.updated_at)[11:]}  {volume.status}")
            failures = volume_failures(volume, allocation_id)
            if done(volume) or failures:
                break
    if failures:
        hint = f"gpuaas volume retry {volume.id} --wait"
        raise CliError(f"volume {volume.name}: {'; '.join(failures)}", WORK_FAILED, hint=hint)
    return volume


def volume_failures(volume: Volume, allocation_id: str) -> list[str]:
    failed = {AttachmentStatus.ATTACH_FAILED, AttachmentStatus.DETACH_FAILED}
    found = [
        f"{item.status} at {item.allocation_name}: {item.reason}"
        for item in volume.attachments
        if item.status in failed and allocation_id in {"", item.allocation_id}
    ]
    if volume.status in {VolumeStatus.DELETE_FAILED, VolumeStatus.LOST}:
        found.append(f"{volume.status}: {volume.reason}")
    return found


def check_succeeded(operation: Operation) -> None:
    if operation.state == OperationState.SUCCEEDED:
        return
    reason = f": {operation.error.code}: {operation.error.detail}" if operation.error else ""
    raise CliError(
        f"{operation.kind} {operation.state}{reason} ({operation.correlation_id})",
        WORK_FAILED,
        hint=first_hint(operation.allowed_actions) or f"gpuaas operation show {operation.id}",
    )


def check_bulk(bulk: Bulk) -> None:
    if bulk.state == BulkState.FAILED:
        done = sum(result.state == "succeeded" for result in bulk.results)
        raise CliError(
            f"{bulk.kind} succeeded on {done} of {len(bulk.results)} members: the policy asked for more",
            WORK_FAILED,
            hint=f"gpuaas instance explain {bulk.instance_id}",
        )


async def check_instance(session: "Session", instance: Instance, goals: Collection[InstanceStatus]) -> None:
    if instance.status in goals:
        return
    operations = await session.client.operations.list(project_id=instance.project_id, instance_id=instance.id).all()
    for operation in sorted(operations, key=lambda operation: operation.id, reverse=True):
        if operation.state == OperationState.FAILED:
            check_succeeded(operation)
    if instance.status == InstanceStatus.UNKNOWN and InstanceStatus.RUNNING in goals:
        # What was asked for is done; how it is now cannot be told at this moment.
        note(f"instance {instance.name} is {instance.status}: {clean(instance.reason)}")
        return
    raise CliError(f"instance {instance.name} is {instance.status}", WORK_FAILED)


def first_hint(actions: list[AllowedAction]) -> str | None:
    return next_command(actions[0]) if actions else None
