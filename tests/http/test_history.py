"""Explanations, events and traces: everything that an operator has to know, and nothing that is not theirs."""

from datetime import UTC, datetime, timedelta

import httpx
import pytest

from gpuaas_contract.identity import Role
from gpuaas_contract.instances import Condition, ConditionStatus, InstanceStatus, MemberStatus
from gpuaas_contract.operations import CommandKind, OperationError, RemoteCommand, StepStatus
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_sdk.errors import NotFoundError
from tests.support.lifecycle import Echo
from tests.support.world import World

COMMAND = RemoteCommand(
    allocation_id="alc_1",
    machine="one",
    kind=CommandKind.STEP,
    name="gpuaas-op_1-greet",
    started_at=datetime.now(UTC),
    seconds=0.5,
    exit_status=1,
)


class Lease:
    def __init__(self, operation_id: str | None, fencing_token: int) -> None:
        self.operation_id = operation_id
        self.fencing_token = fencing_token


async def fail_a_step(world: World, correlation_id: str) -> tuple[str, str]:
    """A deploy whose first step fails on the machine; the controller works under the id of whoever asked."""
    with GpuaasClient.correlation(correlation_id):
        instance = await world.deploy(head=await world.allocation())
        (operation_id,) = await world.claimable()
        operations = world.controller.operations
        claim = await operations.claim(operation_id, "test-controller")
        (member,) = await world.controller.instances.members(instance.id).all()
        lease = Lease(operation_id, claim.fencing_token)
        await world.controller.members.report(
            member.id, lease, status=MemberStatus.FAILED, adapter_detail={"voice": "hoarse"}
        )
        for status in (StepStatus.RUNNING, StepStatus.FAILED):
            await operations.report_step(
                operation_id,
                claim.fencing_token,
                key="greet",
                title="Greet",
                status=status,
                message="" if status == StepStatus.RUNNING else "no sound",
                evidence={"exit": 1},
                commands=[] if status == StepStatus.RUNNING else [COMMAND],
            )
        error = OperationError(code="no_voice", detail="the machine is hoarse", retryable=True)
        await operations.fail(operation_id, claim.fencing_token, error)
    return instance.id, operation_id


async def test_an_explanation_answers_the_five_questions_and_says_what_to_do(world: World) -> None:
    instance_id, operation_id = await fail_a_step(world, "explain-me-1")
    found = await world.admin.history.explain(instance_id)
    assert found.summary == (
        f"greeter ({world.app_slug} 1.0.0) is failed: deploy failed at the step 'Greet': the machine is hoarse"
    )
    assert found.instance.id == instance_id
    assert found.member is not None
    assert found.member.status == MemberStatus.FAILED
    assert found.operation is not None
    assert found.operation.id == operation_id
    assert found.correlation_id == "explain-me-1"
    assert found.adapter_detail == {"voice": "hoarse"}
    assert found.failed_step is not None
    assert found.failed_step.evidence == {"exit": 1}
    assert [command.name for command in found.failed_step.commands] == ["gpuaas-op_1-greet"]
    assert found.member_counts == {"failed": 1}
    # What it offers is what can be done: the first of it, and it works.
    assert {"retry", "decommission"} <= {action.action for action in found.actions}
    retry = next(action for action in found.actions if action.action == "retry")
    headers = {"Authorization": f"Bearer {(await world.admin.fetch_token()).access_token}"}
    async with httpx.AsyncClient(base_url=world.admin.api_url, headers=headers) as http:
        assert (await http.request(str(retry.method), str(retry.href))).status_code == 200
    assert found.events[-1].event == "failed"


async def test_an_explanation_says_what_it_waits_for(world: World) -> None:
    instance = await world.deploy(head=await world.allocation())
    found = await world.admin.history.explain(instance.id)
    assert [finding.code for finding in found.waiting] == ["no_controller"]
    (operation_id,) = await world.claimable()
    claim = await world.controller.operations.claim(operation_id, "test-controller")
    found = await world.admin.history.explain(instance.id)
    assert found.waiting == []
    assert found.operation is not None
    assert found.operation.lease is not None
    assert found.operation.lease.holder == "test-controller"
    await world.controller.operations.yield_lease(operation_id, claim.fencing_token)
    assert "deploy is pending" in (await world.admin.history.explain(instance.id)).summary


async def test_events_are_history_with_filters(world: World) -> None:
    instance_id, operation_id = await fail_a_step(world, "history-1")
    events = world.admin.history.events
    everything = [(event.noun, event.event) async for event in events(instance_id)]
    assert everything[0] == ("instance", "created")
    assert everything[-1] == ("operation", "failed")
    assert ("member", "failed") in everything
    of_steps = [event.event async for event in events(instance_id, event="step_", operation_id=operation_id)]
    assert of_steps == ["step_running", "step_failed"]
    (member,) = await world.admin.instances.members(instance_id).all()
    about = {(event.noun, event.member_id) async for event in events(instance_id, member_id=member.id)}
    assert about == {("member", member.id), ("operation", member.id)}
    assert [event.noun async for event in events(instance_id, noun="member", event="created")] == ["member"]
    backwards = [(event.noun, event.event) async for event in events(instance_id, order="newest_first", limit=2)]
    assert backwards == everything[::-1]
    later = datetime.now(UTC) + timedelta(hours=1)
    assert await events(instance_id, since=later).all() == []
    assert len(await events(instance_id, until=later).all()) == len(everything)
    (claimed,) = await events(instance_id, event="claimed").all()
    assert claimed.principal_id == world.account.id
    # It is still there when the instance is not.
    ending = await world.admin.instances.request(instance_id, "decommission")
    claim = await world.controller.operations.claim(ending.id, "test")
    gone = {member.id: MemberStatus.REMOVED}
    await world.controller.operations.complete(ending.id, claim.fencing_token, member_statuses=gone)
    assert [event.event async for event in events(instance_id, noun="instance")][-1] == "decommissioned"
    headers = {"Authorization": f"Bearer {(await world.admin.fetch_token()).access_token}"}
    async with httpx.AsyncClient(base_url=world.admin.api_url, headers=headers) as http:
        answer = await http.get(f"/v1/app-instances/{instance_id}/events", params={"cursor": "x"})
        assert (answer.status_code, answer.json()["code"]) == (422, "cursor_invalid")


async def test_a_trace_holds_all_that_one_id_touched(world: World) -> None:
    instance_id, operation_id = await fail_a_step(world, "trace-me-1")

    async def traced() -> bool:
        return len((await world.admin.history.trace("trace-me-1")).requests) >= 7

    await world.until(traced, "the requests are written down")
    found = await world.admin.history.trace("trace-me-1")
    routes = [(request.method, request.route, request.status) for request in found.requests]
    assert ("POST", "/v1/app-instances", 201) in routes
    assert ("POST", "/v1/operations/{operation_id}/steps", 200) in routes
    deploy = next(request for request in found.requests if request.route == "/v1/app-instances")
    assert deploy.project_id == world.project.id
    assert {entry.action for entry in found.audit} >= {"app_instance.deploy", "operation.claim", "operation.fail"}
    assert [operation.id for operation in found.operations] == [operation_id]
    (step,) = found.operations[0].steps
    assert step.commands == [COMMAND]
    assert {event.noun for event in found.events} >= {"allocation", "instance", "member", "operation"}
    assert instance_id in {event.resource_id for event in found.events}


async def test_a_trace_shows_only_what_the_caller_may_see(world: World) -> None:
    await fail_a_step(world, "trace-me-2")
    admin, password = world.admin, "a long enough password"
    for email in ("viewer@example.com", "stranger@example.com"):
        await admin.users.create(email, password)
    users = {user.email: user.id async for user in admin.users.list()}
    await admin.memberships.create(users["viewer@example.com"], Role.PROJECT_VIEWER, project_id=world.project.id)
    async with GpuaasClient(admin.api_url, PasswordCredentials("viewer@example.com", password)) as viewer:
        found = await viewer.history.trace("trace-me-2")
        assert (found.requests, found.audit) == ([], [])
        assert found.operations
        assert found.events
    async with GpuaasClient(admin.api_url, PasswordCredentials("stranger@example.com", password)) as stranger:
        with pytest.raises(NotFoundError):
            await stranger.history.trace("trace-me-2")
        # Ids are chosen by callers: to use somebody's id shows one's own request, and no more.
        with GpuaasClient.correlation("trace-me-2"), pytest.raises(NotFoundError):
            await stranger.instances.request("ins_00000000000000000000000000", "decommission")

        async def noted() -> bool:
            try:
                return bool((await stranger.history.trace("trace-me-2")).requests)
            except NotFoundError:
                return False

        await world.until(noted, "the stranger's own request is written down")
        found = await stranger.history.trace("trace-me-2")
        assert [request.status for request in found.requests] == [404]
        assert (found.operations, found.events) == ([], [])


async def test_the_status_is_what_is_so_now_and_not_what_was(world: World) -> None:
    echo = await Echo.deployed(world, await world.allocation("two"), head=await world.allocation("one"))
    (tail,) = await echo.tails()
    claim = await world.controller.reconcile_leases.claim(echo.id, "observer")
    observer = Lease(None, claim.fencing_token)

    async def report(member_ready: ConditionStatus, degraded: ConditionStatus, message: str = "") -> None:
        ready = Condition(type="Ready", status=member_ready, message=message, observed_generation=1)
        await world.controller.members.report(tail.id, observer, conditions=[ready])
        instance = await echo.instance()
        kept = [condition for condition in instance.conditions if condition.type == "Ready"]
        said = Condition(type="Degraded", status=degraded, message=message, observed_generation=1)
        await world.controller.instances.report(echo.id, observer, conditions=[*kept, said])

    await report(ConditionStatus.UNKNOWN, ConditionStatus.UNKNOWN, "the tail does not answer")
    instance = await echo.instance()
    assert (instance.status, instance.reason) == (InstanceStatus.UNKNOWN, "the tail does not answer")
    found = await world.admin.history.explain(echo.id)
    assert found.summary.endswith("is unknown: the tail does not answer")
    assert found.member is not None
    assert (found.member.id, found.member.conditions[0].message) == (tail.id, "the tail does not answer")
    assert "recover" in {action.action for action in found.actions}

    failing = await echo.request("recover", tail)
    await (await echo.controller.claim(failing.id)).fail()
    assert await echo.status() == InstanceStatus.DEGRADED
    await report(ConditionStatus.FALSE, ConditionStatus.TRUE, "the tail is hoarse")
    assert await echo.status() == InstanceStatus.DEGRADED
    # The fault is gone by itself: the operation that failed is history.
    await report(ConditionStatus.TRUE, ConditionStatus.FALSE)
    instance = await echo.instance()
    assert (instance.status, instance.reason) == (InstanceStatus.RUNNING, "")
    assert "is running" in (await world.admin.history.explain(echo.id)).summary
