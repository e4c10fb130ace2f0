"""Whole hosts on simulated nodes: who gets one, what is said meanwhile, and how it ends."""

import asyncio
import secrets
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

from gpuaas_contract.allocations import Allocation, AllocationStatus, Shape, ShapeKind
from gpuaas_contract.nodes import Capacity
from gpuaas_sdk.client import GpuaasClient
from tests.http.test_machines import refused, usage_of
from tests.http.test_nodes import connected, enrolled, status_is
from tests.support.world import SimulatedNode, World

HOST = Capacity(cpus=7, memory_mib=9_000, disk_gib=70, gpus=3)
LEAST = Shape(kind=ShapeKind.HOST, cpus=4, memory_mib=4_096, disk_gib=10, gpus=1)


@asynccontextmanager
async def host_world(admin: GpuaasClient) -> AsyncIterator[tuple[World, SimulatedNode]]:
    """A node that offers slices, and one that offers itself. Gone at the end, so that no other test waits for it."""
    async with World.create(admin, secrets.token_hex(4)) as world:
        host = await enrolled(admin, f"host-{secrets.token_hex(4)}")
        host.capacity, host.offers = HOST, [ShapeKind.HOST]
        async with connected(host):
            await status_is(admin, host, "ready")
            yield world, host
            async for left in admin.allocations.list(project_id=world.project.id):
                if left.status != "released":
                    # Not in the middle of it: a release and a result that meet may cost the simulated node its link.
                    await World.until(partial(_made_or_waiting, admin, left.id), "it is made, or waits")
                    await admin.allocations.release(left.id)
                    await world.at_rest(left.id)
            await admin.nodes.retire(host.node_id)


async def _made_or_waiting(admin: GpuaasClient, allocation_id: str) -> bool:
    return (await admin.allocations.get(allocation_id)).status != AllocationStatus.PROVISIONING


async def ask(world: World, name: str, shape: Shape = LEAST) -> Allocation:
    return await world.admin.allocations.create(world.project.id, name, shape=shape)


async def test_all_of_a_host_or_nothing(admin: GpuaasClient) -> None:
    async with host_world(admin) as (world, host):
        made = await world.at_rest((await ask(world, "whole")).id)
        assert (made.status, made.node_id, made.address) == ("active", host.node_id, "192.0.2.7")
        assert made.shape == Shape(kind=ShapeKind.HOST, **HOST.model_dump())
        assert [action.action for action in made.allowed_actions] == ["restart", "release"]
        node = await admin.nodes.get(host.node_id)
        assert node.inventory is not None
        assert (node.inventory.offers, node.allocated, node.allocation_ids) == ([ShapeKind.HOST], HOST, [made.id])

        second = await ask(world, "second")
        assert second.status == "requested"
        assert f"{node.name}: is taken as a whole" in second.reason
        assert f"node-{world.project.name.removeprefix('prj-')}: offers slices, not a whole host" in second.reason
        slice_ = await world.allocation("slice")
        assert slice_.node_id == world.node.node_id

        await admin.allocations.release(made.id)
        took = await world.at_rest(second.id)
        assert (took.status, took.node_id) == ("active", host.node_id)
        records = await usage_of(world, made.id)
        assert set(records) == {"charged", "occupied"}
        assert all(record.ended_at and record.shapes[0].shape.cpus == 7 for record in records.values())


async def test_a_host_that_is_too_small_is_refused_and_slices_that_find_only_hosts_wait(admin: GpuaasClient) -> None:
    async with host_world(admin) as (world, host):
        name = (await admin.nodes.get(host.node_id)).name
        error = await refused(ask(world, "large", LEAST.model_copy(update={"gpus": 4})), "shape_too_large")
        assert "no node is large enough" in str(error)
        await admin.nodes.cordon(world.node.node_id)
        slice_ = await admin.allocations.create(world.project.id, "slice")
        assert slice_.status == "requested"
        assert f"{name}: offers itself as a whole, not a slice" in slice_.reason


async def test_ten_who_want_one_host_are_nine_who_wait(admin: GpuaasClient) -> None:
    async with host_world(admin) as (world, host):
        made = await asyncio.gather(*(ask(world, f"whole-{number}") for number in range(10)))
        placed = Counter(allocation.node_id for allocation in made)
        assert placed == {host.node_id: 1, None: 9}
        waiting = [allocation for allocation in made if allocation.node_id is None]
        await asyncio.gather(*(admin.allocations.release(allocation.id) for allocation in waiting))


async def test_restarted_but_not_resized(admin: GpuaasClient) -> None:
    async with host_world(admin) as (world, _host):
        made = await world.at_rest((await ask(world, "whole")).id)
        error = await refused(admin.allocations.resize(made.id, cpus=2), "shape_unsupported")
        assert "whole is a whole host: resize is not possible" in str(error)
        volume = await admin.volumes.create(world.project.id, "home", size_gib=2)
        attach = admin.volumes.attach(volume.id, allocation_id=made.id, path="/mnt/home")
        assert "a whole host: attach is not possible" in str(await refused(attach, "shape_unsupported"))
        assert (await admin.allocations.restart(made.id)).activity == "restarting"
        rested = await world.at_rest(made.id)
        assert (rested.status, rested.reason) == ("active", "")
        steps = [entry.step for entry in (await admin.allocations.timeline(made.id)).items]
        assert steps[-3:] == ["restarting", "working", "restarted"]


async def test_a_failed_release_names_its_evidence_and_can_be_tried_again(admin: GpuaasClient) -> None:
    async with host_world(admin) as (world, host):
        made = await world.at_rest((await ask(world, "whole")).id)
        host.fails = {"clear_host"}
        await admin.allocations.release(made.id)
        failed = await world.at_rest(made.id)
        assert (failed.status, failed.reason) == (AllocationStatus.RELEASE_FAILED, "the pool is full")
        records = await usage_of(world, made.id)
        assert records["charged"].ended_at is not None
        assert records["occupied"].ended_at is None
        assert (await ask(world, "second")).status == "requested", "the host is not free"
        host.fails = set()
        await admin.allocations.retry(made.id)
        assert (await world.at_rest(made.id)).status == "released"


async def test_what_a_host_has_beyond_the_request_counts_against_the_quota(admin: GpuaasClient) -> None:
    async with host_world(admin) as (world, host):
        await admin.quotas.set(world.project.id, cpus=5)
        made = await ask(world, "whole")
        assert made.status == "requested"
        name = (await admin.nodes.get(host.node_id)).name
        assert f"the project's quota does not allow all of {name}: CPUs: 4 used, 3 more asked for, 5 allowed" in (
            made.reason
        )
        await admin.quotas.set(world.project.id, cpus=7)
        assert (await world.at_rest(made.id)).status == "active"
        assert (await admin.quotas.get(world.project.id)).used.cpus == 7


async def test_drained_and_retired_like_any_node(admin: GpuaasClient) -> None:
    async with host_world(admin) as (world, host):
        made = await world.at_rest((await ask(world, "whole")).id)
        await refused(admin.nodes.retire(host.node_id), "not_empty")
        assert (await admin.nodes.drain(host.node_id)).status == "draining"
        assert (await admin.allocations.timeline(made.id)).items[-1].step == "node_draining"
        await admin.allocations.release(made.id)
        assert (await world.at_rest(made.id)).status == "released"
        assert (await ask(world, "later")).status == "requested"


async def test_truth_is_read_when_a_host_comes_back(admin: GpuaasClient) -> None:
    """Lost hosts are reported; a released one that is still there is cleared by the task for its kind."""
    async with World.create(admin, secrets.token_hex(4)) as world:
        host = await enrolled(admin, f"host-{secrets.token_hex(4)}")
        host.capacity, host.offers = HOST, [ShapeKind.HOST]
        async with connected(host):
            await status_is(admin, host, "ready")
            made = await world.at_rest((await ask(world, "whole")).id)
        await status_is(admin, host, "offline")
        host.slices = []
        async with connected(host):
            lost = await World.until(lambda: _failed(admin, made.id), "the machine is known to be lost")
            assert "came back without the machine" in lost.reason
            await admin.allocations.release(made.id)
            await world.at_rest(made.id)
        await status_is(admin, host, "offline")
        host.slices = [made.id]
        host.taken.clear()
        async with connected(host):
            await status_is(admin, host, "ready")
            await World.until(lambda: _asked(host), "the host is asked to clear what is left over")
            assert [task.spec.kind for task in host.taken] == ["clear_host"]
            await admin.nodes.retire(host.node_id)


async def _asked(host: SimulatedNode) -> bool:
    return bool(host.taken)


async def _failed(admin: GpuaasClient, allocation_id: str) -> Allocation | None:
    found = await admin.allocations.get(allocation_id)
    return found if found.status == "failed" else None
