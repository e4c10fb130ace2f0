"""A machine under a live member gets another size when its app has agreed, or by force."""

import pytest

from gpuaas_contract.agent_link import ResizeSlice
from gpuaas_contract.allocations import Allocation
from gpuaas_contract.instances import Condition, ConditionStatus, Instance, MemberStatus
from gpuaas_contract.manifest import Manifest
from gpuaas_contract.operations import Operation, OperationError, ResizeQuestion
from tests.http.test_machines import refused
from tests.support.world import MANIFEST, World


class Lease:
    def __init__(self, operation_id: str, fencing_token: int) -> None:
        self.operation_id = operation_id
        self.fencing_token = fencing_token


async def publish(world: World, *kinds: dict[str, str]) -> None:
    document = {**MANIFEST, "slug": world.app_slug, "version": "1.1.0"}
    document["operations"] = [*MANIFEST["operations"], *kinds]
    await world.admin.app_versions.publish(Manifest.model_validate(document))


async def running(world: World, *tails: Allocation, head: Allocation) -> Instance:
    """An instance that its controller has deployed."""
    instance = await world.deploy(*tails, head=head)
    for operation_id in await world.claimable():
        claim = await world.controller.operations.claim(operation_id, "test")
        lease = Lease(operation_id, claim.fencing_token)
        ready = Condition(type="Ready", status=ConditionStatus.TRUE, observed_generation=1)
        await world.controller.instances.report(instance.id, lease, conditions=[ready])
        member = claim.operation.member_id
        assert member is not None
        statuses = {member: MemberStatus.READY}
        await world.controller.operations.complete(operation_id, claim.fencing_token, member_statuses=statuses)
    return await world.admin.instances.get(instance.id)


async def asked(world: World) -> tuple[Operation, int]:
    (operation_id,) = await world.claimable()
    claim = await world.controller.operations.claim(operation_id, "test")
    return claim.operation, claim.fencing_token


def resizes(world: World) -> list[int]:
    return [task.spec.shape.cpus for task in world.node.taken if isinstance(task.spec, ResizeSlice)]


async def steps(world: World, machine: Allocation) -> list[str]:
    return [entry.step for entry in (await world.admin.allocations.timeline(machine.id)).items]


async def test_the_app_agrees_and_then_the_machine_is_resized(world: World) -> None:
    machines = world.admin.allocations
    await publish(world, {"kind": "resize", "title": "Resize", "component": "head"})
    machine = await world.allocation()
    instance = await running(world, head=machine)
    assert instance.status == "running"
    asking = await machines.resize(machine.id, cpus=3)
    assert (asking.activity, asking.shape.cpus) == ("asking", 1)
    assert asking.wanted_shape is not None
    # The room is held meanwhile, and nothing else is done to the machine.
    assert (await world.admin.quotas.get(world.project.id)).used.cpus == 3
    await refused(machines.restart(machine.id, force=True), "invalid_state")
    operation, token = await asked(world)
    assert asking.asked_operation_ids == [operation.id]
    question = ResizeQuestion.model_validate(operation.input)
    assert (question.allocation_id, question.present_shape, question.wanted_shape) == (
        machine.id,
        machine.shape,
        asking.wanted_shape,
    )
    assert resizes(world) == []
    await world.controller.operations.complete(operation.id, token)
    resized = await world.at_rest(machine.id)
    assert (resized.shape.cpus, resized.reason, resized.asked_operation_ids) == (3, "", [])
    assert resizes(world) == [3]
    assert (await steps(world, machine))[-4:] == ["asking", "resizing", "working", "resized"]
    correlations = {entry.correlation_id for entry in (await machines.timeline(machine.id)).items[-4:]}
    assert correlations == {operation.correlation_id}
    assert (await world.admin.instances.get(instance.id)).status == "running"


async def test_the_app_refuses_and_its_reason_is_shown(world: World) -> None:
    machines = world.admin.allocations
    await publish(world, {"kind": "resize", "title": "Resize"})
    machine = await world.allocation()
    instance = await running(world, head=machine)
    await machines.resize(machine.id, memory_mib=4096)
    operation, token = await asked(world)
    error = OperationError(code="too_busy", detail="a job uses all of it until tomorrow", retryable=True)
    await world.controller.operations.fail(operation.id, token, error)
    refusal = await machines.get(machine.id)
    assert (refusal.activity, refusal.wanted_shape, refusal.shape) == (None, None, machine.shape)
    assert refusal.reason == f"the resize was refused by {world.app_slug}: a job uses all of it until tomorrow"
    assert (await steps(world, machine))[-1] == "resize_refused"
    assert resizes(world) == []
    # The instance is as well as before, and the question is not asked again by itself.
    assert (await world.admin.instances.get(instance.id)).status == "running"
    await refused(world.admin.operations.retry(operation.id), "invalid_state")
    # With force nobody is asked.
    await machines.resize(machine.id, memory_mib=4096, force=True)
    assert (await world.at_rest(machine.id)).shape.memory_mib == 4096


async def test_all_members_on_the_machine_are_asked(world: World) -> None:
    machines = world.admin.allocations
    await publish(world, {"kind": "resize", "title": "Resize"})
    machine = await world.allocation()
    await running(world, machine, head=machine)
    asking = await machines.resize(machine.id, cpus=2)
    assert len(asking.asked_operation_ids) == 2
    for operation_id in asking.asked_operation_ids:
        assert (await machines.get(machine.id)).activity == "asking"
        claim = await world.controller.operations.claim(operation_id, "test")
        await world.controller.operations.complete(operation_id, claim.fencing_token)
    assert (await world.at_rest(machine.id)).shape.cpus == 2
    assert resizes(world) == [2]

    # One that refuses is enough, and the others need not answer any more.
    asking = await machines.resize(machine.id, cpus=4)
    refusing, other = asking.asked_operation_ids
    claims = {id: await world.controller.operations.claim(id, "test") for id in (refusing, other)}
    error = OperationError(code="no", detail="not now", retryable=False)
    await world.controller.operations.fail(refusing, claims[refusing].fencing_token, error)
    assert (await machines.get(machine.id)).activity is None
    assert (await world.admin.operations.get(other)).state == "cancelled"
    await refused(world.controller.operations.complete(other, claims[other].fencing_token), "stale_lease")
    assert resizes(world) == [2]


@pytest.mark.parametrize("declared", [[], [{"kind": "resize", "title": "Resize", "component": "tail"}]])
async def test_who_cannot_be_asked_is_not_surprised(world: World, declared: list[dict[str, str]]) -> None:
    machines = world.admin.allocations
    await publish(world, *declared)
    machine = await world.allocation()
    await running(world, head=machine)
    error = await refused(machines.resize(machine.id, cpus=2), "allocation_in_use")
    assert "greeter" in error.problem.detail
    assert [action.action for action in error.problem.allowed_actions] == ["decommission", "resize"]
    assert (await machines.get(machine.id)).activity is None
    assert await world.claimable() == []
    await machines.resize(machine.id, cpus=2, force=True)
    assert (await world.at_rest(machine.id)).shape.cpus == 2


async def test_a_member_that_is_being_worked_on_is_not_asked_meanwhile(world: World) -> None:
    machines = world.admin.allocations
    await publish(world, {"kind": "resize", "title": "Resize"})
    machine = await world.allocation()
    instance = await world.deploy(head=machine)
    error = await refused(machines.resize(machine.id, cpus=2), "operation_running")
    assert error.problem.allowed_actions[0].action == "watch"
    # A decommission takes the question away, and with it the resize.
    (operation_id,) = await world.claimable()
    claim = await world.controller.operations.claim(operation_id, "test")
    await world.controller.operations.complete(operation_id, claim.fencing_token)
    await machines.resize(machine.id, cpus=2)
    await world.admin.instances.request(instance.id, "decommission")
    after = await machines.get(machine.id)
    assert (after.activity, after.shape.cpus) == (None, 1)
    assert "decommissioned" in after.reason
