"""Volumes on a simulated node: their whole life, where they are, what counts, and all that is refused."""

import asyncio
import secrets

import httpx
import pytest

from gpuaas_contract import ids
from gpuaas_contract.allocations import Allocation, AllocationStatus, Shape
from gpuaas_contract.nodes import Capacity
from gpuaas_contract.volumes import Volume, VolumeAt
from gpuaas_platform.domain.errors import Refusal
from gpuaas_platform.services.volume_placement import require_slice
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.errors import ApiError
from tests.http.test_machines import refused
from tests.http.test_nodes import connected
from tests.support.world import SimulatedNode, World

SMALL_DISK = Capacity(cpus=64, memory_mib=262_144, disk_gib=30, gpus=0)


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


async def test_a_request_waits_for_the_node_of_its_volume(admin: GpuaasClient, world: World) -> None:
    one, home = await world.allocation("one"), await volume(world)
    home = await attach(world, home, one)
    node = await admin.nodes.get(world.node.node_id)
    wanted = [VolumeAt(volume_id=home.id, path="/home")]
    # There are other nodes with room: none of them will do.
    async with World.create(admin, secrets.token_hex(4)):
        shape = Shape(cpus=1024)
        made = await admin.allocations.create(world.project.id, "large", shape=shape, volumes=wanted)
        assert made.status == "requested"
        assert f"the volume home is on node {node.name}, which has no room" in made.reason
        assert "CPUs free, 1024 needed" in made.reason
        await admin.nodes.cordon(node.id)
        small = await admin.allocations.create(world.project.id, "small", volumes=wanted)
        assert small.status == "requested"
        assert f"the volume home is on node {node.name}, which cannot take it now" in small.reason
        fresh = await volume(world, "fresh")
        error = await refused(admin.volumes.attach(fresh.id, allocation_id=one.id, path="/fresh"), "no_capacity")
        assert "takes nothing new" in str(error)
        # A wish can be withdrawn, and then any node will do.
        await admin.volumes.detach(home.id, allocation_id=small.id)

        async def placed() -> bool:
            return (await admin.allocations.get(small.id)).node_id not in {None, node.id}

        await world.until(placed, "the small machine is on another node")
        small = await world.at_rest(small.id)
        error = await refused(admin.volumes.attach(home.id, allocation_id=small.id, path="/home"), "invalid_state")
        assert f"the volume home is on node {node.name}" in str(error)
        await admin.volumes.attach(fresh.id, allocation_id=small.id, path="/fresh")
        await world.volume_at_rest(fresh.id)
        both = [*wanted, VolumeAt(volume_id=fresh.id, path="/fresh")]
        error = await refused(admin.allocations.create(world.project.id, "both", volumes=both), "invalid_state")
        assert "no machine can have all of these volumes" in str(error)
        for machine in (made, small):
            await admin.allocations.release(machine.id)
            await world.at_rest(machine.id)


async def test_volumes_never_pass_the_disk_of_the_node(admin: GpuaasClient) -> None:
    async for left in admin.allocations.list(status=AllocationStatus.REQUESTED):
        await admin.allocations.release(left.id)
    async with World.create(admin, secrets.token_hex(4), SMALL_DISK) as world:
        machines = [await world.allocation(f"machine-{number}") for number in range(2)]
        assert {machine.node_id for machine in machines} == {world.node.node_id}
        # 14 GiB are left: two of these fit, also when all come at once and some with a machine of their own.
        made = [await volume(world, f"volume-{number}", 6) for number in range(6)]
        attaching = [
            admin.volumes.attach(item.id, allocation_id=machines[number % 2].id, path=f"/data-{number}")
            for number, item in enumerate(made)
        ]
        answers = await asyncio.gather(*attaching, return_exceptions=True)
        refusals = [answer for answer in answers if isinstance(answer, ApiError)]
        assert [refusal.problem.code for refusal in refusals] == ["no_capacity"] * 4, answers
        assert "GiB of disk free, 6 needed" in str(refusals[0])
        assert await disk_taken(world) == 28
        free = next(item for item, answer in zip(made, answers, strict=True) if isinstance(answer, ApiError))
        waits = await admin.allocations.create(
            world.project.id, "third", shape=Shape(disk_gib=2), volumes=[VolumeAt(volume_id=free.id, path="/x")]
        )
        assert (waits.status, "2 GiB of disk free, 8 needed" in waits.reason) == ("requested", True)
        await admin.allocations.release(waits.id)
        assert (await admin.volumes.get(free.id)).attachments == []


async def test_claims_attachments_and_deletions_at_once_end_in_order(world: World) -> None:
    """Whatever comes first: nothing hangs, and no volume is deleted under a machine."""
    machines = [await world.allocation(f"machine-{number}") for number in range(3)]
    made = [await volume(world, f"volume-{number}", 1) for number in range(4)]
    volumes, allocations = world.admin.volumes, world.admin.allocations
    calls = []
    for number, item in enumerate(made):
        calls += [volumes.attach(item.id, allocation_id=machine.id, path=f"/d{number}") for machine in machines]
        at = [VolumeAt(volume_id=item.id, path="/d")]
        calls += [allocations.create(world.project.id, f"new-{number}", volumes=at), volumes.delete(item.id)]
    calls += [allocations.release(machines[0].id), allocations.restart(machines[1].id)]
    answers = await asyncio.gather(*calls, return_exceptions=True)
    codes = {answer.problem.code for answer in answers if isinstance(answer, Exception)}
    assert codes <= {"invalid_state", "volume_in_use"}, answers
    for item in made:
        found = await world.volume_at_rest(item.id)
        assert found.status in {"ready", "deleted"}
        assert not (found.status == "deleted" and found.attachments)
        assert set(statuses(found).values()) <= {"attached"}
        assert machines[0].id not in {attachment.allocation_id for attachment in found.attachments}


async def test_quota(world: World) -> None:
    admin, project = world.admin, world.project.id
    await admin.quotas.set(project, disk_gib=12)
    creating = (volume(world, f"volume-{number}", 4) for number in range(6))
    answers = await asyncio.gather(*creating, return_exceptions=True)
    made = [answer for answer in answers if isinstance(answer, Volume)]
    assert len(made) == 3
    await refused(admin.allocations.create(project, "machine"), "quota_exceeded")
    error = await refused(volume(world, "more", 1), "quota_exceeded")
    assert "12 used, 1 more asked for, 12 allowed" in str(error)
    await admin.volumes.delete(made[0].id)
    assert (await admin.quotas.get(project)).used.disk_gib == 8


PATHS = [
    "",
    "home",
    "/",
    "/etc",
    "/etc/x",
    "/usr/local/x",
    "/proc",
    "/dev/shm",
    "/var",
    "/opt/gpuaas/artifacts",
    "/root",
]
TRICKS = ["/home/../etc", "/home/./x", "/home//x", "/home/", "/home/a b", "/home/$x", "/home/x\n", "/x;y", "/é", "/a,b"]


async def test_paths(world: World) -> None:
    one, home, other = await world.allocation("one"), await volume(world), await volume(world, "other")
    token = (await world.admin.fetch_token()).access_token
    async with httpx.AsyncClient(
        base_url=f"{world.admin.api_url}/v1", headers={"Authorization": f"Bearer {token}"}
    ) as http:
        for path in [*PATHS, *TRICKS, "/x" * 9, "/" + 65 * "x"]:
            answer = await http.post(f"/volumes/{home.id}/attach", json={"allocation_id": one.id, "path": path})
            assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request"), path
            body = {"project_id": world.project.id, "name": "new", "volumes": [{"volume_id": home.id, "path": path}]}
            assert (await http.post("/allocations", json=body)).status_code == 422, path
    assert (await world.admin.volumes.get(home.id)) == home
    await attach(world, home, one, "/home")
    for path in ("/home", "/home/inside"):
        await refused(world.admin.volumes.attach(other.id, allocation_id=one.id, path=path), "invalid_request")
    await attach(world, other, one, "/home2")


@pytest.mark.parametrize("name", ["", "UP", "a/b", "a;b", "-a"])
async def test_names(world: World, name: str) -> None:
    token = (await world.admin.fetch_token()).access_token
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=f"{world.admin.api_url}/v1", headers=headers) as http:
        body = {"project_id": world.project.id, "name": name, "size_gib": 1}
        assert (await http.post("/volumes", json=body)).status_code == 422


async def test_another_projects_volume_does_not_exist(world: World) -> None:
    admin = world.admin
    other = await admin.projects.create(world.tenant.id, f"other-{secrets.token_hex(3)}")
    theirs = await admin.volumes.create(other.id, "home", size_gib=1)
    mine = await world.allocation("mine")
    await refused(admin.volumes.attach(theirs.id, allocation_id=mine.id, path="/home"), "not_found")
    at = [VolumeAt(volume_id=theirs.id, path="/home")]
    await refused(admin.allocations.create(world.project.id, "new", volumes=at), "not_found")
    assert await admin.allocations.list(project_id=world.project.id, name="new").all() == []
    await refused(admin.volumes.get("vol_06e5k3m7q9v1x3z5b7d9f1h3j5"), "not_found")
    await refused(admin.projects.delete(other.id), "not_empty")
    await admin.volumes.delete(theirs.id)
    await admin.projects.delete(other.id)


async def test_refusals(world: World) -> None:
    admin, volumes = world.admin, world.admin.volumes
    one, home = await world.allocation("one"), await volume(world)
    await refused(volume(world), "name_taken")
    await attach(world, home, one)
    await refused(volumes.attach(home.id, allocation_id=one.id, path="/elsewhere"), "invalid_state")
    twice = [VolumeAt(volume_id=home.id, path="/a"), VolumeAt(volume_id=home.id, path="/b")]
    await refused(admin.allocations.create(world.project.id, "twice", volumes=twice), "invalid_request")
    inside = [VolumeAt(volume_id=home.id, path="/a"), VolumeAt(volume_id=(await volume(world, "b")).id, path="/a/b")]
    await refused(admin.allocations.create(world.project.id, "inside", volumes=inside), "invalid_request")
    world.node.holds = {"detach_volume"}
    await volumes.detach(home.id, allocation_id=one.id)
    await refused(volumes.detach(home.id, allocation_id=one.id), "invalid_state")
    await admin.allocations.release(one.id)
    await refused(volumes.attach(home.id, allocation_id=one.id, path="/home"), "invalid_state")
    await world.at_rest(one.id)
    assert (await volumes.get(home.id)).attachments == []


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


async def test_with_a_shape_of_another_kind_there_are_no_volumes() -> None:
    row = {"shape": {"kind": "host"}}
    with pytest.raises(Refusal) as refusal:
        require_slice(row)
    assert refusal.value.code == "invalid_state"
