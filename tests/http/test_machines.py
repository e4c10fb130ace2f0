"""Allocations on a simulated node: claims, sizes, quotas, usage records, and all that is refused."""

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import pairwise

import pytest

from gpuaas_contract.allocations import Allocation, AllocationStatus, Shape
from gpuaas_contract.nodes import Capacity
from gpuaas_contract.usage import UsageKind, UsageRecord
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.errors import ApiError
from tests.support.world import World

FITS_FIVE = Capacity(cpus=5, memory_mib=5 * 2048, disk_gib=1_000, gpus=5)


@asynccontextmanager
async def small_world(admin: GpuaasClient) -> AsyncIterator[World]:
    """Only for this test: what others left waiting would take its places."""
    async for left in admin.allocations.list(status=AllocationStatus.REQUESTED):
        await admin.allocations.release(left.id)
    async with World.create(admin, secrets.token_hex(4), FITS_FIVE) as world:
        yield world


async def usage_of(world: World, allocation_id: str) -> dict[str, UsageRecord]:
    records = await world.admin.usage.list(project_id=world.project.id, allocation_id=allocation_id).all()
    assert len({record.kind for record in records}) == len(records)
    return {record.kind: record for record in records}


async def refused(call: object, code: str) -> ApiError:
    with pytest.raises(ApiError) as error:
        await call  # type: ignore[misc]
    assert error.value.problem.code == code, error.value
    return error.value


async def test_fifty_claims_on_a_node_that_fits_five_give_exactly_five(admin: GpuaasClient) -> None:
    async with small_world(admin) as world:
        names = [f"claim-{number}" for number in range(50)]
        made = await asyncio.gather(*(admin.allocations.create(world.project.id, name) for name in names))
        placed = Counter(allocation.node_id for allocation in made)
        assert placed == {world.node.node_id: 5, None: 45}
        waiting = [allocation for allocation in made if allocation.node_id is None]
        for allocation in waiting:
            assert allocation.status == "requested"
            assert "0 CPUs free, 1 needed" in allocation.reason
        node = await admin.nodes.get(world.node.node_id)
        assert (node.allocated.cpus, node.allocated.memory_mib) == (5, 5 * 2048)

        # What is given back goes to those who wait, and never to more of them; what is not needed any more is gone.
        active = [await world.at_rest(a.id) for a in made if a.node_id is not None]
        await asyncio.gather(*(admin.allocations.release(allocation.id) for allocation in active[:3]))

        async def three_more() -> bool:
            now = await admin.allocations.list(project_id=world.project.id, status=AllocationStatus.ACTIVE).all()
            return len(now) == 5 and not {a.id for a in now} & {a.id for a in active[:3]}

        await world.until(three_more, "three of those who waited have the freed places")
        assert (await admin.nodes.get(world.node.node_id)).allocated.cpus == 5
        still = await admin.allocations.list(project_id=world.project.id, status=AllocationStatus.REQUESTED).all()
        await asyncio.gather(*(admin.allocations.release(allocation.id) for allocation in still))


async def test_concurrent_resizes_never_pass_the_node(admin: GpuaasClient) -> None:
    async with small_world(admin) as world:
        machines = [await world.allocation(f"grows-{number}") for number in range(3)]
        growing = (admin.allocations.resize(machine.id, cpus=3, memory_mib=2048) for machine in machines)
        answers = await asyncio.gather(*growing, return_exceptions=True)
        refusals = [answer for answer in answers if isinstance(answer, ApiError)]
        assert len(refusals) == 2
        assert {refusal.problem.code for refusal in refusals} == {"no_capacity"}
        assert "CPUs free, 2 needed" in str(refusals[0])
        assert (await admin.nodes.get(world.node.node_id)).allocated.cpus == 5
        (grown,) = [answer for answer in answers if isinstance(answer, Allocation)]
        rested = await world.at_rest(grown.id)
        assert rested.shape.cpus == 3
        charged = (await usage_of(world, grown.id))[UsageKind.CHARGED]
        assert [used.shape.cpus for used in charged.shapes] == [1, 3]


async def test_a_resize_that_fails_leaves_the_size_and_the_room(world: World) -> None:
    machine = await world.allocation()
    before = await world.admin.nodes.get(world.node.node_id)
    world.node.fails = {"resize_slice", "restart_slice"}
    await world.admin.allocations.resize(machine.id, memory_mib=4096, gpus=2)
    after = await world.at_rest(machine.id)
    assert after.shape == machine.shape
    assert after.status == "active"
    assert after.reason == "the resize failed, the size is as before: the pool is full"
    assert (await world.admin.nodes.get(world.node.node_id)).allocated == before.allocated
    await world.admin.allocations.restart(machine.id)
    assert (await world.at_rest(machine.id)).reason == "the restart failed: the pool is full"
    world.node.fails = set()
    await world.admin.allocations.restart(machine.id)
    assert (await world.at_rest(machine.id)).reason == ""


async def test_refused_with_a_stable_code_and_nothing_changed(world: World) -> None:
    admin, machines = world.admin, world.admin.allocations
    machine = await world.allocation()
    other = await world.allocation("two")
    await refused(machines.resize(machine.id, disk_gib=2), "invalid_request")
    await refused(machines.resize(machine.id, cpus=1000), "no_capacity")
    await refused(machines.retry(machine.id), "invalid_state")
    await refused(machines.update(machine.id, name="two"), "name_taken")
    await refused(machines.create(world.project.id, "one"), "name_taken")
    await machines.update(machine.id, name="first")
    # The machine still answers to its host name, so nobody else gets that.
    await refused(machines.create(world.project.id, "one"), "name_taken")
    await refused(machines.update(other.id, name="one"), "name_taken")
    assert (await machines.list(project_id=world.project.id, name="first").all())[0].hostname == "one"

    world.node.holds = {"restart_slice"}
    await machines.restart(machine.id)
    await refused(machines.restart(machine.id), "invalid_state")
    await refused(machines.resize(machine.id, cpus=2), "invalid_state")
    # A release overtakes whatever is being done.
    await machines.release(machine.id)
    assert (await world.at_rest(machine.id)).status == "released"
    for call in (machines.resize(machine.id, cpus=2), machines.restart(machine.id), machines.release(machine.id)):
        await refused(call, "invalid_state")
    await refused(machines.update(machine.id, name="again"), "invalid_state")

    await world.deploy(head=other)
    error = await refused(machines.resize(other.id, cpus=2), "allocation_in_use")
    assert error.problem.allowed_actions[0].action == "decommission"
    await refused(machines.restart(other.id), "allocation_in_use")
    await machines.restart(other.id, force=True)
    assert admin is world.admin


async def test_failures_are_charged_to_nobody_and_can_be_tried_again(world: World) -> None:
    machines = world.admin.allocations
    world.node.fails = {"create_slice"}
    failed = await world.allocation()
    assert (failed.status, failed.reason, failed.charged_from) == ("failed", "the pool is full", None)
    assert failed.charged is False
    assert [action.action for action in failed.allowed_actions] == ["retry", "release"]
    assert set(await usage_of(world, failed.id)) == {UsageKind.OCCUPIED}
    world.node.fails = {"delete_slice"}
    await machines.retry(failed.id)
    active = await world.at_rest(failed.id)
    assert (active.status, active.node_id, active.address) == ("active", failed.node_id, failed.address)
    assert active.charged is True

    await machines.release(failed.id)
    stuck = await world.at_rest(failed.id)
    assert (stuck.status, stuck.reason) == ("release_failed", "the pool is full")
    assert stuck.charged_until is not None
    assert stuck.charged is False
    records = await usage_of(world, failed.id)
    assert records[UsageKind.CHARGED].ended_at == stuck.charged_until
    assert records[UsageKind.OCCUPIED].ended_at is None
    assert "retry" in {action.action for action in stuck.allowed_actions}
    world.node.fails = set()
    await machines.retry(failed.id)
    assert (await world.at_rest(failed.id)).status == "released"
    ended = await usage_of(world, failed.id)
    assert ended[UsageKind.CHARGED] == records[UsageKind.CHARGED]
    occupied_until = ended[UsageKind.OCCUPIED].ended_at
    assert occupied_until is not None
    assert stuck.charged_until is not None
    assert occupied_until > stuck.charged_until

    steps = (await machines.timeline(failed.id)).items
    assert [entry.duration_seconds is None for entry in steps] == [False] * (len(steps) - 1) + [True]
    assert "not charged any more" in next(entry.message for entry in steps if entry.step == "release_failed")


async def test_what_never_had_a_machine_used_nothing(admin: GpuaasClient) -> None:
    async with small_world(admin) as world:
        await admin.allocations.create(world.project.id, "first", shape=Shape(gpus=4))
        waiting = await admin.allocations.create(world.project.id, "second", shape=Shape(gpus=2))
        assert "1 GPUs free, 2 needed" in waiting.reason
        assert (await admin.allocations.release(waiting.id)).status == "released"
        assert await usage_of(world, waiting.id) == {}


async def test_quotas_hold_also_for_claims_at_the_same_time(world: World) -> None:
    admin, project = world.admin, world.project.id
    assert (await admin.quotas.get(project)).limits.cpus is None
    quota = await admin.quotas.set(project, cpus=4, allocations=3)
    assert (quota.revision, quota.used.cpus) == (1, 0)
    names = [f"claim-{number}" for number in range(12)]
    claims = (admin.allocations.create(project, name) for name in names)
    answers = await asyncio.gather(*claims, return_exceptions=True)
    made = [answer for answer in answers if isinstance(answer, Allocation)]
    assert len(made) == 3
    refusals = [answer for answer in answers if isinstance(answer, ApiError)]
    assert {refusal.problem.code for refusal in refusals} == {"quota_exceeded"}, answers
    assert "allocations: 3 used, 1 more asked for, 3 allowed" in str(refusals[0])
    for allocation in made:
        await world.at_rest(allocation.id)
    await refused(admin.allocations.resize(made[0].id, cpus=3), "quota_exceeded")
    await admin.allocations.resize(made[0].id, cpus=2)
    assert (await admin.quotas.get(project)).used.cpus == 4
    await world.at_rest(made[0].id)
    # A release counts at once, also while the node takes its time.
    world.node.holds = {"delete_slice"}
    await admin.allocations.release(made[0].id)
    assert (await admin.quotas.get(project)).used.allocations == 2
    assert (await admin.quotas.set(project, cpus=1)).used.cpus == 2
    await refused(admin.allocations.create(project, "more"), "quota_exceeded")


async def test_each_request_has_its_steps_in_the_timeline_also_after_waiting(world: World) -> None:
    machines, admin = world.admin.allocations, world.admin
    await admin.nodes.cordon(world.node.node_id)
    with admin.correlation("asked-first"):
        waiting = await machines.create(world.project.id, "first")
    # Whoever else asks looks at those who wait, too; that is not theirs.
    with admin.correlation("asked-second"):
        await machines.create(world.project.id, "second")
    assert waiting.status == "requested"
    await admin.nodes.uncordon(world.node.node_id)
    made = await world.at_rest(waiting.id)
    with admin.correlation("restarted"):
        await machines.restart(made.id)
    await world.at_rest(made.id)

    steps = (await machines.timeline(made.id)).items
    created = ["requested", "waiting", "provisioning", "working", "active"]
    assert [entry.step for entry in steps] == [*created, "restarting", "working", "restarted"]
    assert [entry.correlation_id for entry in steps] == ["asked-first"] * 5 + ["restarted"] * 3
    feed = await admin.changes(project_id=world.project.id, since="start").page(wait=0)
    told = [change for change in feed.items if change.resource_id == made.id]
    assert [(change.event, change.correlation_id) for change in told] == [
        (entry.step, entry.correlation_id) for entry in steps
    ]
    for entry, after in pairwise(steps):
        assert entry.duration_seconds == pytest.approx((after.at - entry.at).total_seconds(), abs=1e-5)
    assert steps[1].message == "waiting for capacity: no node is ready"
    assert (await machines.timeline(made.id, correlation_id="asked-first")).items == steps[:5]
    assert (await machines.timeline(made.id, step="working")).items == [steps[3], steps[6]]
    assert (await machines.timeline(made.id, step="nothing")).items == []
