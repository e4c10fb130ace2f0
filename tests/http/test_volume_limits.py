"""Volumes: where they can be, what counts, and all that is refused."""

import asyncio
import secrets

import httpx
import pytest

from gpuaas_contract.allocations import AllocationStatus, Shape
from gpuaas_contract.nodes import Capacity
from gpuaas_contract.volumes import Volume, VolumeAt
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.errors import ApiError
from tests.http.test_machines import refused
from tests.http.test_volumes import attach, disk_taken, volume
from tests.support.world import World

SMALL_DISK = Capacity(cpus=64, memory_mib=262_144, disk_gib=30, gpus=0)


async def test_machines_of_a_tenant_have_no_volumes(world: World) -> None:
    admin, home = world.admin, await volume(world)
    at = [VolumeAt(volume_id=home.id, path="/home")]
    await refused(admin.allocations.create(None, "shared", tenant_id=world.tenant.id, volumes=at), "not_found")
    shared = await admin.allocations.create(None, "shared", tenant_id=world.tenant.id)
    await refused(admin.volumes.attach(home.id, allocation_id=shared.id, path="/home"), "not_found")
    await world.at_rest(shared.id)
    await admin.allocations.release(shared.id)


async def test_a_request_waits_for_the_node_of_its_volume(admin: GpuaasClient, world: World) -> None:
    one, home = await world.allocation("one"), await volume(world)
    home = await attach(world, home, one)
    node = await admin.nodes.get(world.node.node_id)
    wanted = [VolumeAt(volume_id=home.id, path="/home")]
    # There are other nodes with room: none of them will do.
    async with World.create(admin, secrets.token_hex(4)):
        shape = Shape(cpus=64)
        made = await admin.allocations.create(world.project.id, "large", shape=shape, volumes=wanted)
        assert made.status == "requested"
        assert f"the volume home is on node {node.name}, which has no room" in made.reason
        assert "CPUs free, 64 needed" in made.reason
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
