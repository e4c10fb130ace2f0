"""Requests for machines: those that are accepted, and those that are refused at once."""

from typing import Any

import httpx

from gpuaas_contract.agent_link import CreateSlice
from gpuaas_contract.allocations import Allocation, Shape
from tests.http.test_machines import refused
from tests.http.test_nodes import connected
from tests.support.world import IMAGES, SimulatedNode, World


def ordered(world: World, allocation: Allocation) -> CreateSlice:
    """Read the task by which the node was asked to make the machine."""
    specs = [task.spec for task in world.node.taken if isinstance(task.spec, CreateSlice)]
    (spec,) = [spec for spec in specs if spec.allocation_id == allocation.id]
    return spec


async def problem_of(world: World, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """For what the client itself would not send."""
    headers = {"Authorization": f"Bearer {(await world.admin.fetch_token()).access_token}"}
    async with httpx.AsyncClient(base_url=world.admin.api_url, headers=headers) as http:
        answer = await http.post(path, json=body)
    assert answer.is_error, answer.text
    return dict(answer.json())


async def test_a_machine_is_made_from_the_image_that_was_asked_for(world: World) -> None:
    machines, project = world.admin.allocations, world.project.id
    default, other = IMAGES
    plain = await world.allocation()
    assert (plain.image, ordered(world, plain).image) == (default, default)
    asked = await machines.create(project, "asked", image=other)
    made = await world.at_rest(asked.id)
    assert (made.status, made.image, ordered(world, made).image) == ("active", other, other)


async def test_an_image_that_no_node_has_is_refused_and_the_others_are_named(world: World) -> None:
    machines, project = world.admin.allocations, world.project.id
    error = await refused(machines.create(project, "one", image="gpuaas/no-such-thing"), "image_unknown")
    assert error.problem.errors[0].pointer == "/image"
    assert set(IMAGES) <= set(error.problem.context["images"])
    assert IMAGES[1] in error.problem.detail
    assert await machines.list(project_id=project).all() == []


async def test_an_image_that_no_ready_node_has_is_waited_for(world: World) -> None:
    machines, project = world.admin.allocations, world.project.id
    # Of this node only: other tests have nodes of their own, all with the same two.
    rare = f"gpuaas/{world.project.name}"
    node_id = world.node.node_id
    richer = SimulatedNode(node_id, world.node.private_key_pem, world.admin.api_url, images=[*IMAGES, rare])
    async with connected(richer):

        async def told() -> bool:
            inventory = (await world.admin.nodes.get(node_id)).inventory
            return inventory is not None and rare in inventory.images

        await world.until(told, "the node has told of its new image")
        await world.admin.nodes.cordon(node_id)
        waiting = await machines.create(project, "one", image=rare)
        assert (waiting.status, waiting.image) == ("requested", rare)
        assert "waiting" in waiting.reason
        await world.admin.nodes.uncordon(node_id)
        made = await world.at_rest(waiting.id)
        assert (made.status, made.node_id) == ("active", node_id)


async def test_several_at_once_are_all_made_or_none(world: World) -> None:
    machines, project = world.admin.allocations, world.project.id
    batch = await machines.create_batch(project, "w", 3, shape=Shape(cpus=2), idempotency_key="three")
    assert [made.name for made in batch.items] == ["w-1", "w-2", "w-3"]
    again = await machines.create_batch(project, "w", 3, shape=Shape(cpus=2), idempotency_key="three")
    assert [made.id for made in again.items] == [made.id for made in batch.items]
    rested = [await world.at_rest(made.id) for made in batch.items]
    assert {made.status for made in rested} == {"active"}
    assert len({made.address for made in rested}) == 3
    assert [found.id for found in await machines.list(project_id=project).all()] == [made.id for made in batch.items]

    error = await refused(machines.create_batch(project, "w", 4), "name_taken")
    assert all(repr(name) in error.problem.detail for name in ("w-1", "w-2", "w-3"))
    assert "w-4" not in error.problem.detail
    await world.admin.quotas.set(project, cpus=8)
    error = await refused(machines.create_batch(project, "more", 3), "quota_exceeded")
    assert "CPUs: 6 used, 3 more asked for, 8 allowed" in error.problem.detail
    error = await refused(machines.create_batch(project, "x" * 47, 2), "invalid_request")
    assert error.problem.errors[0].pointer == "/name"
    assert len(await machines.list(project_id=project).all()) == 3
    assert (await world.admin.quotas.get(project)).used.cpus == 6


async def test_a_batch_has_between_one_and_sixty_four(world: World) -> None:
    for count in (0, 65, -1, None):
        body = {"project_id": world.project.id, "name": "w", "count": count}
        problem = await problem_of(world, "/v1/allocations/batch", body)
        assert (problem["code"], problem["errors"][0]["pointer"]) == ("invalid_request", "/count")


async def test_what_no_node_can_ever_carry_is_refused_at_once(world: World) -> None:
    machines, project = world.admin.allocations, world.project.id
    error = await refused(machines.create(project, "one", shape=Shape(cpus=1000, gpus=9)), "shape_too_large")
    assert "no node is large enough; the largest has 64 CPUs" in error.problem.detail
    assert {field.pointer for field in error.problem.errors} == {"/shape/cpus", "/shape/gpus"}
    error = await refused(machines.create_batch(project, "w", 2, shape=Shape(cpus=65)), "shape_too_large")
    assert [field.pointer for field in error.problem.errors] == ["/shape/cpus"]
    assert await machines.list(project_id=project).all() == []
    # As large as the largest node: that can be waited for, also while the node is not to be had.
    await world.admin.nodes.cordon(world.node.node_id)
    waiting = await machines.create(project, "all", shape=Shape(cpus=64, gpus=8))
    assert waiting.status == "requested"
    await machines.release(waiting.id)


NONSENSE: list[tuple[str, object, str]] = [
    ("shape", {"cpus": 0}, "/shape/cpus"),
    ("shape", {"cpus": 1.5}, "/shape/cpus"),
    ("shape", {"cpus": 10**30}, "/shape/cpus"),
    ("shape", {"memory_mib": 1}, "/shape/memory_mib"),
    ("shape", {"disk_gib": -8}, "/shape/disk_gib"),
    ("shape", {"gpus": -1}, "/shape/gpus"),
    ("shape", {"gpus": "many"}, "/shape/gpus"),
    ("shape", {"kind": "cloud"}, "/shape/kind"),
    ("shape", None, "/shape"),
    *(
        ("name", name, "/name")
        for name in ("", "a;reboot", "$(id)", "../etc", "a/b", "a b", "-a", "a-", "A", "a\n", "a.b", "é", "a" * 49)
    ),
    *(
        ("image", image, "/image")
        for image in ("", "../x", "a//b", "a/b/c", "/etc/passwd", "a b", "a;b", "$(id)", "a\n", "A", "a" * 200)
    ),
]


async def test_nonsense_is_refused_and_nothing_is_made(world: World) -> None:
    for field, value, pointer in NONSENSE:
        body = {"project_id": world.project.id, "name": "one", field: value}
        for path, more in (("/v1/allocations", {}), ("/v1/allocations/batch", {"count": 2})):
            problem = await problem_of(world, path, {**body, **more})
            found = (problem["code"], [error["pointer"] for error in problem["errors"]])
            assert found == ("invalid_request", [pointer]), (field, value)
    assert await world.admin.allocations.list(project_id=world.project.id).all() == []
