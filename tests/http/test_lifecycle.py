"""The whole life of instances and members, driven by a controller that is written out in tests/support."""

import pytest

from gpuaas_contract.bulk import AtLeast, BulkState, Policy
from gpuaas_contract.instances import ConditionStatus, MemberStatus
from gpuaas_contract.manifest import CapacityShape
from gpuaas_contract.operations import OperationState
from gpuaas_sdk.errors import (
    ActionNotAllowedError,
    AllocationInUseError,
    ComponentLimitError,
    ForbiddenError,
    InvalidRequestError,
    InvalidStateError,
    OperationRunningError,
    PolicyNotMetError,
)
from tests.support.controller import EchoController
from tests.support.lifecycle import Echo, manifest
from tests.support.world import World


def condition(resource, kind: str) -> tuple[str, str]:  # type: ignore[no-untyped-def]
    found = next(condition for condition in resource.conditions if condition.type == kind)
    return found.status.value, found.reason


async def test_a_member_is_added_drained_resumed_replaced_and_removed(world: World) -> None:
    one, two, three = [await world.allocation(name) for name in ("one", "two", "three")]
    echo = await Echo.deployed(world, head=one)
    assert (await echo.status(), (await echo.instance()).generation) == ("running", 1)
    bulk = await world.admin.instances.add_members(echo.id, "tail", [two.id])
    (result,) = bulk.results
    assert (bulk.state, result.state) == (BulkState.RUNNING, OperationState.PENDING)
    instance = await echo.instance()
    assert (instance.status, instance.generation) == ("running", 2)
    assert [p.allocation_id for p in instance.placement_intent] == [one.id, two.id]
    with pytest.raises(AllocationInUseError):
        await world.admin.allocations.release(two.id)
    assert await echo.controller.run_all() == ["add"]
    assert (await world.admin.bulk_operations.get(bulk.id)).state == BulkState.SUCCEEDED
    (tail,) = await echo.tails()
    assert (tail.status, tail.last_operation_id) == (MemberStatus.READY, result.operation_id)
    assert condition(tail, "VersionDrift") == (ConditionStatus.FALSE, "AsExpected")

    await echo.run("drain", tail)
    assert (await echo.member(tail.id)).status == MemberStatus.DRAINED
    await echo.run("resume", tail)
    await echo.run("recover", tail)
    await echo.run("tune", tail)
    replaced = await echo.run("replace", tail, allocation_id=three.id)
    (new,) = await echo.tails()
    assert (new.id, new.replaces_member_id) == (replaced.replacement_member_id, tail.id)
    assert (new.allocation_id, new.status) == (three.id, MemberStatus.READY)

    # The tombstone keeps its history, and the same machine can be added again as another member.
    (tombstone,) = await echo.members(removed=True)
    assert (tombstone.id, tombstone.status, tombstone.allowed_actions) == (tail.id, MemberStatus.REMOVED, [])
    history = [op.kind async for op in world.admin.operations.list(member_id=tail.id)]
    assert history == ["add", "drain", "resume", "recover", "tune", "replace"]
    assert len(await echo.members(removed=None)) == 3
    await world.admin.instances.add_members(echo.id, "tail", [two.id])
    await echo.controller.run_all()
    again = next(member for member in await echo.tails() if member.allocation_id == two.id)
    assert again.id != tail.id
    await echo.run("remove", again)
    assert [p.allocation_id for p in (await echo.instance()).placement_intent] == [one.id, three.id]
    assert (await world.admin.allocations.release(two.id)).status == "releasing"


async def test_an_instance_is_stopped_started_configured_and_upgraded(world: World) -> None:
    echo = await Echo.deployed(world, await world.allocation("two"), head=await world.allocation("one"))
    stop = await echo.request("stop")
    assert await echo.status() == "stopping"
    with pytest.raises(OperationRunningError) as refused:
        await echo.request("restart")
    assert refused.value.problem.context["operation_id"] == stop.id
    await echo.controller.run(stop.id)
    assert await echo.status() == "stopped"
    assert {member.status for member in await echo.members()} == {MemberStatus.STOPPED}
    (tail,) = await echo.tails()
    with pytest.raises(ActionNotAllowedError, match="start it first"):
        await echo.request("drain", tail)
    with pytest.raises(ActionNotAllowedError, match="stopped already"):
        await echo.request("stop")
    start = await echo.request("start")
    assert await echo.status() == "starting"
    await echo.controller.run(start.id)
    instance = await echo.instance()
    assert (instance.status, condition(instance, "InSync")) == ("running", ("true", "Observed"))

    generation = instance.generation
    with pytest.raises(InvalidRequestError):
        await echo.request("configure", inputs={"greeting": 7})
    configure = await echo.request("configure", inputs={"greeting": "ahoy"})
    instance = await echo.instance()
    assert (instance.status, instance.inputs, instance.generation) == ("updating", {"greeting": "ahoy"}, generation + 1)
    assert condition(instance, "InSync") == ("false", "UnderWay")
    await echo.controller.run(configure.id)
    assert await echo.status() == "running"

    newer = manifest(world.app_slug, "1.2.0", runtime={"name": "echo", "version": "8"})
    await world.admin.app_versions.publish(newer)
    with pytest.raises(InvalidRequestError):
        await echo.request("upgrade", version="9.9.9")
    with pytest.raises(ActionNotAllowedError):
        await echo.request("upgrade", version="1.1.0")
    upgrade = await echo.request("upgrade", version="1.2.0")
    instance = await echo.instance()
    assert (instance.versions.app, condition(instance, "VersionDrift")) == ("1.2.0", ("true", "OtherVersion"))
    await echo.controller.run(upgrade.id)
    instance = await echo.instance()
    assert (instance.status, condition(instance, "VersionDrift")[0]) == ("running", "false")
    assert condition((await echo.tails())[0], "VersionDrift") == ("true", "OtherVersion")

    # Cancelled before anybody claimed it, an operation has had no effect.
    stop = await echo.request("stop")
    cancelled = await world.admin.operations.cancel(stop.id)
    assert (cancelled.state, cancelled.allowed_actions) == (OperationState.CANCELLED, [])
    assert await echo.status() == "running"
    assert await echo.run("restart")
    assert (await echo.run("rehearse")).result == {"kind": "rehearse"}


async def test_what_waits_runs_after_success_and_is_cancelled_after_failure(world: World) -> None:
    echo = await Echo.deployed(
        world, *[await world.allocation(name) for name in ("two", "three")], head=await world.allocation("one")
    )
    first, second = await echo.tails()
    drain = await echo.request("drain", first)
    with pytest.raises(OperationRunningError) as refused:
        await echo.request("recover", first)
    assert refused.value.problem.context["operation_id"] == drain.id
    resume = await echo.request("resume", first, queue=True)
    again = await echo.request("drain", first, queue=True)
    restart = await echo.request("restart", queue=True)
    other = await echo.request("drain", second, queue=True)
    assert (resume.queued, again.waits_for) == (True, [drain.id, resume.id])
    assert [restart.queued, other.waits_for] == [True, [restart.id]]
    assert [op.id for op in await echo.controller.claimable()] == [drain.id]
    with pytest.raises(InvalidStateError):
        await world.controller.operations.claim(resume.id, "too-early")
    work = await echo.controller.claim(drain.id)
    await work.report(first.id, MemberStatus.DRAINED)
    await work.complete()
    begun = await echo.operation(resume.id)
    assert (begun.queued, begun.deadline > resume.deadline) == (False, True)
    assert [op.id for op in await echo.controller.claimable()] == [resume.id]
    work = await echo.controller.claim(resume.id)
    await work.fail()
    ended = [await echo.operation(op.id) for op in (again, restart, other)]
    assert [op.state for op in ended] == [OperationState.CANCELLED] * 3
    assert {op.error.code for op in ended if op.error} == {"predecessor_failed"}

    # One that leads nowhere when its turn comes is cancelled with the reason.
    await echo.controller.run((await world.admin.operations.retry(resume.id)).id)
    drain = await echo.request("drain", first)
    resume, doubled = [await echo.request("resume", first, queue=True) for _ in range(2)]
    assert await echo.controller.run_all() == ["drain", "resume"]
    pointless = await echo.operation(doubled.id)
    assert (pointless.state, pointless.error and pointless.error.code) == ("cancelled", "not_allowed_any_more")


async def test_a_retry_of_the_deploy_tries_its_members_again(world: World) -> None:
    head, *machines = [await world.allocation(name) for name in ("one", "two", "three", "four")]
    await world.admin.app_versions.publish(manifest(world.app_slug))
    instance = await world.deploy(*machines, head=head)
    echo = Echo(world, EchoController(world.controller, world.project.id), instance.id)
    deploy, joined, hoarse, mute = [
        await echo.controller.claim(found.id) for found in await echo.controller.claimable()
    ]
    await joined.complete()
    await deploy.fail()
    await hoarse.fail()
    await mute.fail(retryable=False)
    assert await echo.controller.claimable() == []
    # One that failed alone is tried again alone.
    await world.admin.operations.retry(hoarse.operation_id)
    assert [found.id for found in await echo.controller.claimable()] == [hoarse.operation_id]
    await (await echo.controller.claim(hoarse.operation_id)).fail()

    await world.admin.operations.retry(deploy.operation_id)
    assert [found.id for found in await echo.controller.claimable()] == [deploy.operation_id, hoarse.operation_id]
    assert await echo.controller.run_all() == ["deploy", "add"]
    assert (await echo.operation(mute.operation_id)).state == OperationState.FAILED


async def test_replacements_that_are_called_off_do_not_pile_up(world: World) -> None:
    head, *machines = [await world.allocation(name) for name in ("one", "two", "three", "four", "five", "six")]
    echo = await Echo.deployed(world, *machines[:3], head=head)
    first = (await echo.tails())[0]
    replace = await echo.request("replace", first, allocation_id=machines[3].id)
    with pytest.raises(OperationRunningError):
        await echo.request("replace", first, queue=True, allocation_id=machines[4].id)
    work = await echo.controller.claim(replace.id)
    await world.admin.operations.cancel(replace.id)
    await world.controller.operations.end_cancelled(replace.id, work.fencing_token)
    assert len(await echo.tails()) == 4, "both are there, and the app says what of"
    for tail in await echo.tails():
        with pytest.raises(ComponentLimitError):
            await echo.request("replace", tail, allocation_id=machines[4].id)
    await echo.controller.run((await world.admin.operations.retry(replace.id)).id)
    assert [tail.replaces_member_id for tail in await echo.tails()] == [None, None, first.id]


async def test_cancelling_what_runs_asks_its_controller(world: World) -> None:
    echo = await Echo.deployed(world, await world.allocation("two"), head=await world.allocation("one"))
    (tail,) = await echo.tails()
    drain = await echo.request("drain", tail)
    work = await echo.controller.claim(drain.id)
    with pytest.raises(InvalidStateError):
        await world.controller.operations.end_cancelled(drain.id, work.fencing_token)
    asked = await world.admin.operations.cancel(drain.id)
    assert (asked.state, asked.cancel_requested) == (OperationState.RUNNING, True)
    with pytest.raises(InvalidStateError):
        await world.admin.operations.cancel(drain.id)
    assert (await world.controller.operations.heartbeat(drain.id, work.fencing_token)).cancel_requested
    statuses = {tail.id: MemberStatus.READY}
    await world.controller.operations.end_cancelled(drain.id, work.fencing_token, member_statuses=statuses)
    ended = await echo.operation(drain.id)
    assert (ended.state, [action.action for action in ended.allowed_actions]) == ("cancelled", ["retry"])
    await echo.controller.run((await world.admin.operations.retry(drain.id)).id)
    assert (await echo.member(tail.id)).status == MemberStatus.DRAINED

    # Given back after it was asked to stop, it is cancelled too.
    resume = await echo.request("resume", tail)
    work = await echo.controller.claim(resume.id)
    await world.admin.operations.cancel(resume.id)
    given_back = await world.controller.operations.yield_lease(resume.id, work.fencing_token)
    assert given_back.state == OperationState.CANCELLED
    wanted = await echo.request("decommission")
    with pytest.raises(ActionNotAllowedError):
        await world.admin.operations.cancel(wanted.id)


async def test_removal_preempts_and_what_cannot_be_proved_is_written_off(world: World) -> None:
    echo = await Echo.deployed(world, await world.allocation("two"), head=await world.allocation("one"))
    (tail,) = await echo.tails()
    drain = await echo.request("drain", tail)
    work = await echo.controller.claim(drain.id)
    queued = await echo.request("resume", tail, queue=True)
    removal = await echo.request("remove", tail)
    assert {(await echo.operation(op.id)).state for op in (drain, queued)} == {OperationState.CANCELLED}
    with pytest.raises(Exception, match="stale_lease"):
        await work.complete()
    with pytest.raises(OperationRunningError):
        await echo.request("remove", tail)
    work = await echo.controller.claim(removal.id)
    with pytest.raises(InvalidStateError, match="as removed first"):
        await work.complete()
    with pytest.raises(OperationRunningError):
        await world.admin.members.forget(tail.id, "too early")
    await work.fail(retryable=False)
    with pytest.raises(ActionNotAllowedError):
        await world.admin.instances.abandon(echo.id, "too early")
    broken = await echo.member(tail.id)
    assert [action.action for action in broken.allowed_actions][-1] == "forget"
    assert await echo.status() == "degraded"
    gone = await world.admin.members.forget(tail.id, "the machine was stolen")
    assert gone.unverified is not None
    assert (gone.status, gone.unverified.reason, gone.unverified.operation_id) == (
        MemberStatus.REMOVED,
        "the machine was stolen",
        removal.id,
    )
    assert await echo.status() == "running"
    assert (await world.admin.allocations.release(tail.allocation_id)).status == "releasing"

    wanted = await echo.request("decommission")
    work = await echo.controller.claim(wanted.id)
    await work.fail()
    assert [action.action for action in (await echo.instance()).allowed_actions] == ["decommission", "abandon"]
    over = await world.admin.instances.abandon(echo.id, "the whole rack was stolen")
    assert (over.status, over.unverified and over.unverified.detail) == ("decommissioned", "the machine is hoarse")
    assert await echo.members() == []
    with pytest.raises(InvalidStateError):
        await echo.request("decommission")


async def test_many_at_once_follow_their_policy(world: World) -> None:
    one, *others = [await world.allocation(name) for name in ("one", "two", "three", "four", "five")]
    echo = await Echo.deployed(world, head=one)
    instances, ids = world.admin.instances, [other.id for other in others]
    with pytest.raises(PolicyNotMetError) as refused:
        await instances.add_members(echo.id, "tail", ids)
    assert [error.pointer for error in refused.value.errors] == ["/allocation_ids/3"]
    assert refused.value.problem.context["results"][3]["refused"]["code"] == "component_limit"
    assert len(await echo.members()) == 1
    added = await instances.add_members(echo.id, "tail", ids, policy=AtLeast(at_least=2))
    assert [result.refused and result.refused.code for result in added.results] == [None, None, None, "component_limit"]

    # The first succeeds, the second fails: two are still possible. The third fails: two are not.
    work = [await echo.controller.claim(str(result.operation_id)) for result in added.results[:2]]
    await work[0].complete(**{str(work[0].operation.member_id): MemberStatus.READY})
    await work[1].fail()
    assert (await world.admin.bulk_operations.get(added.id)).state == BulkState.RUNNING
    await (await echo.controller.claim(str(added.results[2].operation_id))).fail()
    ended = await world.admin.bulk_operations.get(added.id)
    assert (ended.state, [result.state for result in ended.results]) == (
        BulkState.FAILED,
        ["succeeded", "failed", "failed", None],
    )
    await echo.controller.run((await world.admin.operations.retry(str(ended.results[1].operation_id))).id)
    assert (await world.admin.bulk_operations.get(added.id)).state == BulkState.SUCCEEDED
    await echo.controller.run((await world.admin.operations.retry(str(ended.results[2].operation_id))).id)

    # All or nothing: when one fails, what nobody has claimed yet is cancelled.
    tails = [member.id for member in await echo.tails()]
    tuned = await instances.request_on_members(echo.id, "tune", tails, policy=Policy.ALL_OR_NOTHING)
    await (await echo.controller.claim(str(tuned.results[0].operation_id))).fail(usable=True)
    ended = await world.admin.bulk_operations.get(tuned.id)
    assert (ended.state, [result.state for result in ended.results]) == (
        BulkState.FAILED,
        ["failed", "cancelled", "cancelled"],
    )
    assert await echo.controller.claimable() == []
    assert await echo.status() == "running"
    await echo.run("drain", (await echo.tails())[0])
    best = await instances.request_on_members(echo.id, "resume", [*tails, "mem_nobody"], policy=Policy.BEST_EFFORT)
    codes = [result.refused and result.refused.code for result in best.results]
    assert codes == [None, "action_not_allowed", "action_not_allowed", "not_found"]
    await echo.controller.run_all()
    assert (await world.admin.bulk_operations.get(best.id)).state == BulkState.SUCCEEDED
    listed = [bulk.id async for bulk in instances.bulk_operations(echo.id)]
    assert listed == [added.id, tuned.id, best.id]


MODES = [
    {
        "key": "alone",
        "title": "Alone",
        "actions": ["decommission", "restart"],
        "limits": [{"component": "tail", "max": 1}],
        "max_machines": 1,
    },
    {"key": "choir", "title": "Choir", "limits": [{"component": "tail", "min": 1, "max": 2}]},
]


async def test_limits_and_modes_narrow_what_can_be_asked_for(world: World) -> None:
    one, two, three = [await world.allocation(name) for name in ("one", "two", "three")]
    alone = await Echo.deployed(world, head=one, modes=MODES)
    instance = await alone.instance()
    assert (instance.mode, [action.action for action in instance.allowed_actions]) == (
        "alone",
        ["decommission", "restart"],
    )
    with pytest.raises(ActionNotAllowedError, match="mode alone"):
        await alone.request("stop")
    with pytest.raises(PolicyNotMetError, match="mode alone"):
        await world.admin.instances.add_members(alone.id, "tail", [two.id])
    choir = Echo(world, alone.controller, (await world.deploy(three, head=two, name="choir")).id)
    await choir.controller.run_all()
    assert (await choir.instance()).mode == "choir"
    (tail,) = await choir.tails()
    with pytest.raises(ComponentLimitError, match="at least 1"):
        await choir.request("remove", tail)
    head = next(member for member in await choir.members() if member.component_key == "head")
    with pytest.raises(InvalidRequestError):
        await choir.request("drain", head)
    with pytest.raises(PolicyNotMetError, match="is used by"):
        await world.admin.instances.add_members(choir.id, "tail", [one.id])
    crowd = [await world.allocation(name) for name in ("four", "five", "six", "seven")]
    with pytest.raises(InvalidRequestError, match="fits no mode"):
        await world.deploy(*crowd[1:], head=crowd[0], name="crowd")


async def test_the_default_mode_is_taken_on_one_machine_too_and_a_mode_can_be_changed(world: World) -> None:
    one, two = [await world.allocation(name) for name in ("one", "two")]
    instances = world.admin.instances
    choir = await Echo.deployed(world, one, head=one, modes=MODES, default_mode="choir")
    assert (await choir.instance()).mode == "choir"
    with pytest.raises(InvalidRequestError, match="has no mode 'solo'; it has: alone, choir"):
        await instances.update(choir.id, mode="solo")
    with pytest.raises(ForbiddenError):
        await world.controller.instances.update(choir.id, mode="alone")
    alone = await instances.update(choir.id, mode="alone")
    assert (alone.mode, [action.action for action in alone.allowed_actions]) == ("alone", ["decommission", "restart"])
    with pytest.raises(PolicyNotMetError, match="mode alone"):
        await instances.add_members(choir.id, "tail", [two.id])
    again = await instances.update(choir.id, mode="alone")
    assert again.revision == alone.revision, "the mode that it has is no change"
    await instances.update(choir.id, mode="choir")
    await instances.add_members(choir.id, "tail", [two.id])
    with pytest.raises(ActionNotAllowedError, match="do not fit the mode: alone has 0 to 1 of tail, not 2"):
        await instances.update(choir.id, mode="alone")
    entries = await world.admin.audit.list(project_id=world.project.id, action="app_instance.update").all()
    assert [entry.detail for entry in entries] == [
        {"mode": "alone", "before": "choir"},
        {"mode": "choir", "before": "alone"},
    ]
    await choir.controller.run_all()
    await choir.request("decommission")
    with pytest.raises(InvalidStateError, match="being decommissioned"):
        await instances.update(choir.id, mode="choir")


async def test_those_that_share_a_machine_are_refused_where_it_is_too_small_for_both(world: World) -> None:
    """By the deploy itself, as the preflight says it: nothing is made."""
    machine = await world.allocation("one")
    needs = CapacityShape(memory_mib=machine.shape.memory_mib // 2 + 1)
    made = manifest(world.app_slug)
    components = [component.model_copy(update={"requires_capacity_shape": needs}) for component in made.components]
    await world.admin.app_versions.publish(made.model_copy(update={"components": components}))
    with pytest.raises(InvalidRequestError, match="too small for head and tail together"):
        await world.deploy(machine, head=machine)
    assert [found.name async for found in world.admin.instances.list(project_id=world.project.id)] == []
    alone = await world.deploy(head=machine)
    with pytest.raises(PolicyNotMetError, match="too small for head and tail together"):
        await world.admin.instances.add_members(alone.id, "tail", [machine.id])
