"""Instances, members and operations, driven by a controller that is written out here call by call."""

import httpx
import psycopg
import pytest

from gpuaas_contract.allocations import Shape
from gpuaas_contract.instances import Condition, ConditionStatus, InstanceStatus, MemberStatus
from gpuaas_contract.manifest import Manifest
from gpuaas_contract.nouns import Noun
from gpuaas_contract.operations import OperationError, OperationState, StepStatus
from gpuaas_sdk.changes import Relist
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import ServiceAccountCredentials
from gpuaas_sdk.errors import (
    AllocationInUseError,
    ConflictError,
    ForbiddenError,
    InvalidRequestError,
    LeaseHeldError,
    NameTakenError,
    NotFoundError,
    StaleLeaseError,
)
from gpuaas_stack.settings import Settings
from tests.support.database import database_url
from tests.support.world import MANIFEST, World, make_key

PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"


def ready(generation: int) -> list[Condition]:
    return [Condition(type="Ready", status=ConditionStatus.TRUE, observed_generation=generation)]


class Lease:
    def __init__(self, operation_id: str, fencing_token: int) -> None:
        self.operation_id = operation_id
        self.fencing_token = fencing_token


async def claim(world: World, operation_id: str) -> Lease:
    claimed = await world.controller.operations.claim(operation_id, "test-controller")
    return Lease(operation_id, claimed.fencing_token)


async def run_all(world: World, instance_id: str, status: MemberStatus) -> None:
    """Do every open operation of the instance in the shortest possible way."""
    operations = world.controller.operations
    for operation_id in await world.claimable():
        lease = await claim(world, operation_id)
        operation = await operations.get(operation_id)
        async for member in world.controller.instances.members(instance_id):
            if operation.member_id in {None, member.id}:
                await world.controller.members.report(member.id, lease, status=status)
        if operation.kind == "deploy":
            await world.controller.instances.report(instance_id, lease, conditions=ready(1), observed_runtime="echo 7")
        await operations.complete(operation_id, lease.fencing_token, result={"kind": operation.kind})


async def test_the_life_of_an_instance(world: World) -> None:
    one, two = await world.allocation("one"), await world.allocation("two")
    instance = await world.deploy(two, head=one)
    assert instance.status == InstanceStatus.DEPLOYING
    assert instance.inputs == {"greeting": "hello"}
    members = [member async for member in world.admin.instances.members(instance.id)]
    assert [(m.component_key, m.allocation_id) for m in members] == [("head", one.id), ("tail", two.id)]
    operations = [op async for op in world.admin.operations.list(instance_id=instance.id)]
    assert [(op.kind, op.member_id) for op in operations] == [("deploy", members[0].id), ("add", members[1].id)]
    assert {op.correlation_id for op in operations} == {instance.correlation_id}

    with pytest.raises(AllocationInUseError) as refused:
        await world.admin.allocations.release(one.id)
    assert refused.value.allowed_actions[0].action == "decommission"

    await run_all(world, instance.id, MemberStatus.READY)
    instance = await world.admin.instances.get(instance.id)
    assert instance.status == InstanceStatus.RUNNING
    assert instance.versions.observed_runtime == "echo 7"

    gone = await world.admin.instances.request(instance.id, "decommission")
    assert (await world.admin.instances.get(instance.id)).status == InstanceStatus.DECOMMISSIONING
    await run_all(world, instance.id, MemberStatus.REMOVED)
    assert (await world.admin.operations.get(gone.id)).result == {"kind": "decommission"}
    assert (await world.admin.instances.get(instance.id)).status == InstanceStatus.DECOMMISSIONED
    tombstones = [member.status async for member in world.admin.instances.members(instance.id)]
    assert tombstones == [MemberStatus.REMOVED, MemberStatus.REMOVED]

    again = await world.deploy(head=one)
    assert again.status == InstanceStatus.DEPLOYING
    assert (await world.admin.allocations.release(two.id)).status == "releasing"


async def test_a_lease_fences_off_everybody_else(world: World) -> None:
    instance = await world.deploy(head=await world.allocation())
    (operation_id,) = await world.claimable()
    old = await claim(world, operation_id)
    assert await world.claimable() == []
    with pytest.raises(LeaseHeldError):
        await claim(world, operation_id)
    operations = world.controller.operations
    await operations.yield_lease(operation_id, old.fencing_token)
    new = await claim(world, operation_id)
    assert new.fencing_token > old.fencing_token

    (member,) = [member async for member in world.controller.instances.members(instance.id)]
    for stale in (
        operations.heartbeat(operation_id, old.fencing_token),
        operations.complete(operation_id, old.fencing_token),
        operations.report_step(operation_id, old.fencing_token, key="late", title="Late", status=StepStatus.RUNNING),
        operations.access(operation_id, old.fencing_token, PUBLIC_KEY),
        world.controller.members.report(member.id, old, status=MemberStatus.READY),
        world.controller.instances.report(instance.id, old, conditions=ready(1)),
    ):
        with pytest.raises(StaleLeaseError):
            await stale
    after = await world.admin.operations.get(operation_id)
    assert (after.steps, after.state, after.attempt) == ([], OperationState.RUNNING, 2)
    assert (await world.admin.members.get(member.id)).status == MemberStatus.PENDING


async def test_the_answer_to_a_report_does_not_grow_with_the_steps_before_it(world: World, settings: Settings) -> None:
    await world.deploy(head=await world.allocation())
    (operation_id,) = await world.claimable()
    lease = await claim(world, operation_id)
    operations = world.controller.operations
    for number in range(1, 4):
        answer = await operations.report_step(
            operation_id,
            lease.fencing_token,
            key=f"step-{number}",
            title=f"Step {number}",
            status=StepStatus.RUNNING,
            evidence={"said": "hello" * 1_000},
        )
    assert (answer.id, answer.state, answer.cancel_requested) == (operation_id, OperationState.RUNNING, False)
    beat = await operations.heartbeat(operation_id, lease.fencing_token)
    assert (beat.id, beat.revision) == (answer.id, answer.revision)
    assert beat.lease.expires_at > answer.lease.expires_at
    now = await world.admin.operations.get(operation_id)
    assert (now.revision, [step.key for step in now.steps]) == (answer.revision, ["step-1", "step-2", "step-3"])
    with psycopg.connect(database_url(settings)) as database:
        kept = database.execute(
            "SELECT length(body) FROM idempotency_keys WHERE body LIKE %s", [f'{{"id":"{operation_id}"%']
        ).fetchall()
    assert len(kept) == 3
    assert len(set(kept)) == 1, "the kept answers are alike, however many steps came before"


async def test_steps_are_shown_and_a_failure_can_be_retried(world: World) -> None:
    await world.deploy(head=await world.allocation())
    (operation_id,) = await world.claimable()
    lease = await claim(world, operation_id)
    operations = world.controller.operations
    for status in (StepStatus.RUNNING, StepStatus.SUCCEEDED):
        await operations.report_step(
            operation_id, lease.fencing_token, key="greet", title="Greet", status=status, evidence={"said": "hello"}
        )
    error = OperationError(code="no_voice", detail="the machine is hoarse", retryable=True)
    failed = await operations.fail(operation_id, lease.fencing_token, error)
    assert [(step.key, step.status, step.attempt) for step in failed.steps] == [("greet", "succeeded", 1)]
    assert failed.error == error
    assert failed.instance_id is not None
    broken = await world.admin.instances.get(failed.instance_id)
    assert (broken.status, broken.reason) == (InstanceStatus.FAILED, "deploy: the machine is hoarse")
    assert [action.action for action in failed.allowed_actions] == ["retry"]
    with pytest.raises(StaleLeaseError):
        await operations.complete(operation_id, lease.fencing_token)
    retried = await world.admin.operations.retry(operation_id)
    assert (retried.state, retried.error) == (OperationState.PENDING, None)
    with pytest.raises(ConflictError):
        await world.admin.operations.retry(operation_id)


async def test_decommission_preempts_a_running_deploy(world: World) -> None:
    instance = await world.deploy(head=await world.allocation())
    (deploy_id,) = await world.claimable()
    lease = await claim(world, deploy_id)
    wanted = await world.admin.instances.request(instance.id, "decommission")
    assert (await world.admin.operations.get(deploy_id)).state == OperationState.CANCELLED
    with pytest.raises(StaleLeaseError):
        await world.controller.operations.heartbeat(deploy_id, lease.fencing_token)
    assert await world.claimable() == [wanted.id]
    with pytest.raises(ConflictError) as refused:
        await world.admin.instances.request(instance.id, "decommission")
    assert refused.value.problem.context["operation_id"] == wanted.id


async def test_bad_placements_are_all_named_at_once(world: World) -> None:
    one = await world.allocation()
    await world.deploy(head=one, name="first")
    with pytest.raises(InvalidRequestError) as refused:
        await world.deploy(one, one, head=one, name="first", greeting=7, unknown="field")
    used = "allocation one is used by first already"
    alone = "tail may not share allocation one with tail"
    assert sorted((error.pointer, error.detail) for error in refused.value.errors) == [
        ("/inputs", "Additional properties are not allowed ('unknown' was unexpected)"),
        ("/inputs/greeting", "7 is not of type 'string'"),
        ("/name", "the project has an app instance named 'first' already"),
        ("/placement_intent/0", used),
        ("/placement_intent/1", used),
        ("/placement_intent/1", alone),
        ("/placement_intent/2", used),
        ("/placement_intent/2", alone),
    ]
    with pytest.raises(InvalidRequestError):
        await world.deploy(head=one, name="third", greeting=7)
    with pytest.raises(InvalidRequestError):
        await world.deploy(head=one, name="third", unknown="field")
    gone = await world.allocation("gone")
    await world.admin.allocations.release(gone.id)
    await world.at_rest(gone.id)
    with pytest.raises(InvalidRequestError, match="allocation gone is released, not active"):
        await world.deploy(head=gone, name="third")
    assert [i.name async for i in world.admin.instances.list(project_id=world.project.id)] == ["first"]


async def test_members_change_with_the_end_of_their_operation_or_not_at_all(world: World) -> None:
    one, two = await world.allocation("one"), await world.allocation("two")
    instance = await world.deploy(two, head=one)
    await run_all(world, instance.id, MemberStatus.READY)
    wanted = await world.admin.instances.request(instance.id, "decommission")
    lease = await claim(world, wanted.id)
    members = [member.id async for member in world.controller.instances.members(instance.id)]
    gone = dict.fromkeys(members, MemberStatus.REMOVED)
    operations = world.controller.operations
    strays = {**gone, "mem_elsewhere": MemberStatus.REMOVED}
    with pytest.raises(NotFoundError):
        await operations.complete(wanted.id, lease.fencing_token, member_statuses=strays)
    states = {member.status async for member in world.controller.instances.members(instance.id)}
    assert states == {MemberStatus.READY}
    await operations.complete(wanted.id, lease.fencing_token, member_statuses=gone)
    assert (await world.admin.instances.get(instance.id)).status == InstanceStatus.DECOMMISSIONED


async def test_components_that_must_share_a_machine_do(world: World) -> None:
    tail = {**MANIFEST["components"][1], "must_share_machine_with": ["head"]}
    changes = {"slug": world.app_slug, "version": "1.1.0", "components": [MANIFEST["components"][0], tail]}
    await world.admin.app_versions.publish(Manifest.model_validate({**MANIFEST, **changes}))
    one, two = await world.allocation("one"), await world.allocation("two")
    with pytest.raises(InvalidRequestError, match="same allocation as head"):
        await world.deploy(two, head=one)
    assert (await world.deploy(one, head=one)).status == InstanceStatus.DEPLOYING


async def test_a_controller_has_its_own_app_in_its_own_project_and_nothing_else(world: World) -> None:
    admin, controller = world.admin, world.controller
    instance = await world.deploy(head=await world.allocation())
    private, public = make_key()
    other = await admin.projects.create(world.tenant.id, "other")
    hidden = await admin.allocations.create(other.id, "hidden")
    with pytest.raises(NotFoundError):
        await controller.allocations.get(hidden.id)
    with pytest.raises(NotFoundError):
        await controller.projects.get(other.id)
    with pytest.raises(ForbiddenError):
        await controller.tenants.create("mine")
    with pytest.raises(ForbiddenError):
        await controller.instances.request(instance.id, "decommission")
    with pytest.raises(ForbiddenError):
        await controller.allocations.access(instance.placement_intent[0].allocation_id, PUBLIC_KEY)
    with pytest.raises(ForbiddenError):
        await admin.operations.claim((await world.claimable())[0], "a-person")

    # A controller of another app in the same project does not even know of the instance.
    account = await admin.service_accounts.create(
        world.project.id, "stranger", public, app_slug=await world.other_app()
    )
    async with GpuaasClient(admin.api_url, ServiceAccountCredentials(account.id, private)) as stranger:
        assert [op async for op in stranger.operations.list()] == []
        assert [op async for op in stranger.operations.list(claimable=True)] == []
        assert [found async for found in stranger.instances.list()] == []
        for hidden_call in (
            stranger.instances.get(instance.id),
            stranger.operations.claim((await world.claimable())[0], "stranger"),
            stranger.changes(instance_id=instance.id).page(wait=0),
        ):
            with pytest.raises(NotFoundError):
                await hidden_call
        seen = await stranger.changes(project_id=world.project.id, since="start").page(wait=0)
        assert {change.noun for change in seen.items} & {"instance", "member", "operation"} == set()
        assert {change.noun for change in seen.items} >= {"allocation"}


async def test_allocations_wait_for_capacity_and_say_so(world: World) -> None:
    await world.admin.allocations.create(world.project.id, "first", shape=Shape(gpus=5))
    big = await world.admin.allocations.create(world.project.id, "big", shape=Shape(gpus=8))
    assert big.status == "requested"
    assert "3 GPUs free, 8 needed" in big.reason
    assert (await world.admin.allocations.release(big.id)).status == "released"
    with pytest.raises(ConflictError):
        await world.admin.allocations.release(big.id)
    world.node.fail_creates = True
    broken = await world.allocation("broken")
    assert (broken.status, broken.reason) == ("failed", "the pool is full")
    with pytest.raises(NameTakenError):
        await world.admin.allocations.create(world.project.id, "broken")
    steps = [entry.step for entry in (await world.admin.allocations.timeline(broken.id)).items]
    assert steps == ["requested", "provisioning", "working", "failed"]


async def test_nodes_and_join_tokens(settings: Settings, world: World) -> None:
    _, public = make_key()
    join = await world.admin.join_tokens.create(f"second-{world.app_slug}")
    enrolled = await world.admin.nodes.enrol(join.token, public)
    assert (await world.admin.nodes.enrol(join.token, public)).node_id == enrolled.node_id
    async with httpx.AsyncClient(base_url=settings.api_url) as http:
        _, other = make_key()
        answer = await http.post("/v1/nodes/enrol", json={"join_token": join.token, "public_key_pem": other})
        assert (answer.status_code, answer.json()["code"]) == (401, "join_token_invalid")
        answer = await http.get("/v1/agent/artifacts/sha256:00", headers={"Authorization": "Bearer x.y.z"})
        assert answer.status_code == 401


async def test_the_feed_shows_everything_once_and_in_order(world: World) -> None:
    feed = world.admin.changes(project_id=world.project.id)
    await feed.page(wait=0)
    instance = await world.deploy(head=await world.allocation())
    await run_all(world, instance.id, MemberStatus.READY)
    seen: list[tuple[str, str]] = []
    revisions: dict[str, int] = {}
    async for change in feed:
        assert not isinstance(change, Relist)
        assert change.revision >= revisions.get(change.resource_id, 0)
        revisions[change.resource_id] = change.revision
        assert change.app_slug == (None if change.noun == Noun.ALLOCATION else instance.app_slug)
        seen.append((change.noun, change.event))
        if (change.noun, change.event) == ("operation", "succeeded"):
            break
    assert seen[:2] == [("allocation", "requested"), ("allocation", "provisioning")]
    assert seen[-1] == ("operation", "succeeded")
    assert ("member", "ready") in seen
