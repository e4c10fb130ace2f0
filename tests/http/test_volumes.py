"""Volumes on a simulated node: their whole life, their failures, and what a node has of them."""

import asyncio
from collections.abc import Awaitable

from gpuaas_contract import ids
from gpuaas_contract.allocations import Allocation
from gpuaas_contract.volumes import Volume, VolumeAt
from gpuaas_sdk.errors import ApiError
from tests.http.test_machines import refused
from tests.http.test_nodes import connected
from tests.support.world import SimulatedNode, World


async def volume(world: World, name: str = "home", size_gib: int = 5) -> Volume:
    return await world.admin.volumes.create(world.project.id, name, size_gib=size_gib)


async def attach(world: World, volume: Volume, machine: Allocation, path: str = "/home/shared") -> Volume:
    await world.admin.volumes.attach(volume.id, allocation_id=machine.id, path=path)
    return await world.volume_at_rest(volume.id)


async def disk_taken(world: World) -> int:
    return (await world.admin.nodes.get(world.node.node_id)).allocated.disk_gib


def statuses(volume: Volume) -> dict[str, str]:
    return {attachment.allocation_name: attachment.status for attachment in volume.attachments}


async def test_life(world: World) -> None:
    admin, volumes = world.admin, world.admin.volumes
    one, two = await world.allocation("one"), await world.allocation("two")
    home = await volume(world)
    assert (home.status, home.node_id) == ("unplaced", None)
    assert {action.action for action in home.allowed_actions} == {"attach", "delete"}
    before = await disk_taken(world)

    home = await attach(world, home, one)
    assert (home.status, home.node_id) == ("ready", world.node.node_id)
    assert await disk_taken(world) == before + 5
    home = await attach(world, home, two, "/srv/home")
    assert statuses(home) == {"one": "attached", "two": "attached"}
    shown = await admin.allocations.get(two.id)
    assert [(item.name, item.path, item.status) for item in shown.volumes] == [("home", "/srv/home", "attached")]
    assert shown.revision > two.revision
    steps = [entry.step for entry in (await admin.allocations.timeline(two.id)).items]
    assert [step for step in steps if "attach" in step] == ["attaching", "attached"]

    error = await refused(volumes.delete(home.id), "volume_in_use")
    assert "one, two" in str(error)
    assert error.problem.context["allocation_ids"] == [one.id, two.id]
    await volumes.detach(home.id, allocation_id=one.id)
    home = await world.volume_at_rest(home.id)
    assert statuses(home) == {"two": "attached"}
    await refused(volumes.detach(home.id, allocation_id=one.id), "invalid_state")

    await admin.allocations.release(two.id)
    await world.at_rest(two.id)
    home = await volumes.get(home.id)
    assert (home.status, home.attachments) == ("ready", [])
    assert await disk_taken(world) == before - two.shape.disk_gib + 5
    await refused(volumes.attach(home.id, allocation_id=two.id, path="/home/shared"), "invalid_state")

    assert (await volumes.delete(home.id)).status == "deleting"
    assert (await world.volume_at_rest(home.id)).status == "deleted"
    assert await disk_taken(world) == before - two.shape.disk_gib
    await refused(volumes.delete(home.id), "invalid_state")
    await refused(volumes.attach(home.id, allocation_id=one.id, path="/home/shared"), "invalid_state")
    again = await volume(world)
    assert again.id != home.id
    assert (await volumes.delete(again.id)).status == "deleted"


async def test_a_machine_with_volumes_from_its_start(world: World) -> None:
    home, data = await volume(world), await volume(world, "data")
    wanted = [VolumeAt(volume_id=home.id, path="/home"), VolumeAt(volume_id=data.id, path="/data")]
    made = await world.admin.allocations.create(world.project.id, "both", volumes=wanted)
    made = await world.at_rest(made.id)
    assert made.status == "active"
    assert [(item.name, item.status) for item in made.volumes] == [("data", "attached"), ("home", "attached")]
    assert {(await world.admin.volumes.get(v.id)).status for v in (home, data)} == {"ready"}
    # Only what no other machine has goes with it, and only when that is asked for.
    other = await world.allocation("other")
    await attach(world, data, other)
    await world.admin.allocations.release(made.id, delete_volumes=True)
    await world.at_rest(made.id)
    assert (await world.volume_at_rest(home.id)).status == "deleted"
    kept = await world.admin.volumes.get(data.id)
    assert (kept.status, statuses(kept)) == ("ready", {"other": "attached"})


async def test_several_machines_at_once_share_a_volume_that_was_nowhere(world: World) -> None:
    home = await volume(world)
    before = await disk_taken(world)
    at = [VolumeAt(volume_id=home.id, path="/home")]
    batch = await world.admin.allocations.create_batch(world.project.id, "w", 3, volumes=at)
    made = [await world.at_rest(machine.id) for machine in batch.items]
    assert {machine.node_id for machine in made} == {world.node.node_id}
    found = await world.admin.volumes.get(home.id)
    assert (found.status, statuses(found)) == ("ready", {"w-1": "attached", "w-2": "attached", "w-3": "attached"})
    assert await disk_taken(world) == before + 3 * made[0].shape.disk_gib + 5


async def test_failures_are_told_and_tried_again(world: World) -> None:
    volumes = world.admin.volumes
    one, home = await world.allocation("one"), await volume(world)
    world.node.fails = {"attach_volume", "detach_volume", "delete_volume"}
    failed = await attach(world, home, one)
    assert (failed.status, statuses(failed)) == ("placed", {"one": "attach_failed"})
    assert failed.attachments[0].reason == "the pool is full"
    assert "retry" in {action.action for action in failed.allowed_actions}
    world.node.fails.discard("attach_volume")
    await volumes.retry(home.id)
    assert statuses(await world.volume_at_rest(home.id)) == {"one": "attached"}
    await refused(volumes.retry(home.id), "invalid_state")
    await volumes.detach(home.id, allocation_id=one.id)
    assert statuses(await world.volume_at_rest(home.id)) == {"one": "detach_failed"}
    world.node.fails.discard("detach_volume")
    await volumes.retry(home.id)
    assert (await world.volume_at_rest(home.id)).attachments == []
    await volumes.delete(home.id)
    broken = await world.volume_at_rest(home.id)
    assert (broken.status, broken.reason) == ("delete_failed", "the pool is full")
    assert (await world.admin.quotas.get(world.project.id)).used.disk_gib == one.shape.disk_gib + 5
    world.node.fails = set()
    await volumes.retry(home.id)
    assert (await world.volume_at_rest(home.id)).status == "deleted"


async def test_a_machine_that_cannot_be_made_keeps_its_wish(world: World) -> None:
    home = await volume(world)
    world.node.fails = {"create_slice"}
    wanted = [VolumeAt(volume_id=home.id, path="/home")]
    made = await world.admin.allocations.create(world.project.id, "late", volumes=wanted)
    assert (await world.at_rest(made.id)).status == "failed"
    assert statuses(await world.admin.volumes.get(home.id)) == {"late": "waiting"}
    world.node.fails = set()
    await world.admin.allocations.retry(made.id)
    await world.at_rest(made.id)
    found = await world.admin.volumes.get(home.id)
    assert (found.status, statuses(found)) == ("ready", {"late": "attached"})


async def test_claims_attachments_and_deletions_at_once_end_in_order(world: World) -> None:
    """Whatever comes first: nothing hangs, and no volume is deleted under a machine."""
    machines = [await world.allocation(f"machine-{number}") for number in range(3)]
    made = [await volume(world, f"volume-{number}", 1) for number in range(4)]
    volumes, allocations = world.admin.volumes, world.admin.allocations
    calls: list[Awaitable[object]] = []
    for number, item in enumerate(made):
        calls += [volumes.attach(item.id, allocation_id=machine.id, path=f"/d{number}") for machine in machines]
        at = [VolumeAt(volume_id=item.id, path="/d")]
        calls += [allocations.create(world.project.id, f"new-{number}", volumes=at), volumes.delete(item.id)]
    calls += [allocations.release(machines[0].id), allocations.restart(machines[1].id)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    codes = {answer.problem.code for answer in answers if isinstance(answer, ApiError)}
    assert not [answer for answer in answers if isinstance(answer, Exception) and not isinstance(answer, ApiError)]
    assert codes <= {"invalid_state", "volume_in_use"}, answers
    for item in made:
        found = await world.volume_at_rest(item.id)
        assert found.status in {"ready", "deleted"}
        assert not (found.status == "deleted" and found.attachments)
        assert set(statuses(found).values()) <= {"attached"}
        assert machines[0].id not in {attachment.allocation_id for attachment in found.attachments}


async def test_a_node_with_volumes_is_not_retired(world: World) -> None:
    admin, node_id = world.admin, world.node.node_id
    one, home = await world.allocation("one"), await volume(world)
    await attach(world, home, one)
    await admin.nodes.drain(node_id)
    await admin.allocations.release(one.id)
    await world.at_rest(one.id)
    assert (await admin.nodes.get(node_id)).volume_ids == [home.id]
    error = await refused(admin.nodes.retire(node_id), "not_empty")
    assert "the volumes home" in str(error)
    assert error.problem.context["volume_ids"] == [home.id]
    await admin.volumes.delete(home.id)
    assert (await world.volume_at_rest(home.id)).status == "deleted"
    assert (await admin.nodes.retire(node_id)).status == "retired"


async def test_volumes_are_compared_when_a_node_returns(world: World) -> None:
    admin, volumes = world.admin, world.admin.volumes
    one, two = await world.allocation("one"), await world.allocation("two")
    kept, lost, gone = [await volume(world, name, 1) for name in ("kept", "lost", "gone")]
    await attach(world, kept, one, "/kept")
    await attach(world, lost, two, "/lost")
    await attach(world, gone, two, "/gone")
    await volumes.detach(gone.id, allocation_id=two.id)
    await world.volume_at_rest(gone.id)
    await volumes.delete(gone.id)
    await world.volume_at_rest(gone.id)
    stranger = ids.new_id(ids.VOLUME)
    back = SimulatedNode(world.node.node_id, world.node.private_key_pem, admin.api_url)
    # The machine `two` went with the volume `lost`.
    back.slices, back.volumes = [one.id], [kept.id, gone.id, stranger]
    async with connected(back):

        async def compared() -> bool:
            return bool((await admin.nodes.get(back.node_id)).differences)

        await world.until(compared, "the platform has compared")
        differences = (await admin.nodes.get(back.node_id)).differences
        found = {item.volume_id: item.finding for item in differences if item.volume_id is not None}
        assert found == {lost.id: "missing", gone.id: "left_over", stranger: "unknown"}
        assert ((await volumes.get(kept.id)).status, statuses(await volumes.get(kept.id))) == (
            "ready",
            {"one": "attached"},
        )
        now = await volumes.get(lost.id)
        assert (now.status, now.attachments) == ("lost", [])
        assert "came back without it" in now.reason
        await refused(volumes.attach(lost.id, allocation_id=one.id, path="/lost"), "invalid_state")
        await volumes.delete(lost.id)
        assert (await world.volume_at_rest(lost.id)).status == "deleted"
