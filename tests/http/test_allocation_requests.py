"""What can be asked for when machines are created, and what is refused at once."""

from gpuaas_contract.agent_link import CreateSlice
from gpuaas_contract.allocations import Allocation
from tests.http.test_machines import refused
from tests.http.test_nodes import connected
from tests.support.world import IMAGES, SimulatedNode, World


def ordered(world: World, allocation: Allocation) -> CreateSlice:
    """What the node was asked to make for it."""
    specs = [task.spec for task in world.node.taken if task.spec.allocation_id == allocation.id]
    (spec,) = [spec for spec in specs if isinstance(spec, CreateSlice)]
    return spec


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
