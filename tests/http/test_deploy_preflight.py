"""The app's own checks as the first step of a deploy: nothing can be claimed before they are done, nothing after they
found an error."""

import asyncio
from typing import Any

import httpx
import pytest

from gpuaas_contract.access import OBSERVER_LOGIN
from gpuaas_contract.findings import Finding, Severity
from gpuaas_contract.instances import Instance, InstanceDeploy, MemberStatus
from gpuaas_contract.operations import Operation, OperationError
from gpuaas_contract.preflights import PreflightResult
from gpuaas_sdk import Controller, MachineUnreachableError, OperationContext, PreflightContext, preflight_handler
from gpuaas_sdk.errors import InvalidStateError
from gpuaas_stack.settings import Settings
from tests.http.test_preflight import PUBLIC_KEY, publish, request
from tests.support.controller import Work
from tests.support.database import connect
from tests.support.leases import decommission
from tests.support.world import World


async def deploy(world: World, name: str = "greeter", tails: int = 1, **changes: Any) -> Instance:
    placements = [("head", (await world.allocation(f"{name}-head")).id)]
    placements += [("tail", (await world.allocation(f"{name}-tail-{number}")).id) for number in range(tails)]
    return await world.admin.instances.deploy(request(world, *placements, name=name, **changes))


async def operations(world: World, instance: Instance) -> dict[str, Operation]:
    """The newest of each kind."""
    return {op.kind: op async for op in world.admin.operations.list(instance_id=instance.id)}


async def claimable(world: World) -> list[Operation]:
    return await world.controller.operations.list(project_id=world.project.id, claimable=True).all()


async def look(world: World) -> Work:
    """Claim the one preflight that is to be done."""
    (looking,) = await claimable(world)
    assert looking.kind == "preflight"
    claim = await world.controller.operations.claim(looking.id, "test")
    return Work(world.controller, claim.operation, claim.fencing_token)


async def answer(work: Work, *findings: Finding) -> None:
    result = PreflightResult(findings=list(findings)).model_dump(mode="json")
    await work.client.operations.complete(work.operation_id, work.fencing_token, result=result)


def found(severity: Severity = Severity.ERROR, message: str = "port 7 is taken") -> Finding:
    return Finding(severity=severity, code="port_taken", message=message, action="free it")


async def test_a_deploy_begins_after_the_look(world: World) -> None:
    await publish(world)
    instance = await deploy(world)
    waiting = await operations(world, instance)
    assert {kind: (op.state, op.queued) for kind, op in waiting.items()} == {
        "deploy": ("pending", True),
        "add": ("pending", True),
    }
    (step,) = waiting["deploy"].steps
    assert (step.key, step.status, step.attempt) == ("preflight", "running", 1)
    for op in waiting.values():
        with pytest.raises(InvalidStateError, match="waits for the app's preflight"):
            await world.controller.operations.claim(op.id, "hasty")
    work = await look(world)
    assert waiting["deploy"].waits_for == [work.operation_id]
    grant = await world.controller.operations.access(work.operation_id, work.fencing_token, PUBLIC_KEY)
    members = await world.admin.instances.members(instance.id).all()
    assert {m.allocation_id for m in grant.machines} == {m.allocation_id for m in members}, "all members' machines"
    assert grant.login == OBSERVER_LOGIN
    preflight = await world.controller.preflights.get(work.operation.preflight_id or "")
    asked = InstanceDeploy.model_validate(preflight.request)
    assert (asked.name, len(asked.placement_intent), preflight.instance_id) == ("greeter", 2, instance.id)
    said = await world.admin.history.explain(instance.id)
    assert [finding.code for finding in said.waiting] == ["preflight"]

    await answer(work, found(Severity.WARNING))
    begun = await operations(world, instance)
    assert {op.kind for op in await claimable(world)} == {"deploy", "add"}
    (step,) = begun["deploy"].steps
    assert (step.status, step.evidence["findings"][0]["code"]) == ("succeeded", "port_taken")
    assert begun["deploy"].gate_preflight_id == preflight.id
    claim = await world.controller.operations.claim(begun["deploy"].id, "test")
    assert (claim.operation.attempt, [step.key for step in claim.operation.steps]) == (1, ["preflight"])


async def test_a_finding_ends_it_before_anything_changed(world: World) -> None:
    await publish(world)
    instance = await deploy(world, tails=2)
    await answer(await look(world), found(), found(Severity.WARNING, "it is late"))
    failed = await operations(world, instance)
    assert await claimable(world) == []
    for op in failed.values():
        assert op.error is not None
        assert (op.state, op.error.code, op.error.retryable, op.attempt) == ("failed", "preflight_failed", True, 0)
        assert "port 7 is taken. Nothing was changed on any machine" in op.error.detail
        assert [finding["message"] for finding in op.result["findings"]] == ["port 7 is taken", "it is late"]
    (step,) = failed["deploy"].steps
    assert (step.key, step.status, step.evidence["left_out"]) == ("preflight", "failed", 0)
    assert "retry" in [action.action for action in failed["deploy"].allowed_actions]
    now = await world.admin.instances.get(instance.id)
    assert now.status == "failed"
    assert "port 7 is taken" in now.reason
    said = await world.admin.history.explain(instance.id)
    assert failed["add"].error is not None
    assert failed["add"].error.detail.startswith("not begun, as its deploy was not: port 7")
    assert said.failed_step is not None
    assert said.failed_step.key == "preflight"

    # Mended and retried: the app looks again, and then all of it begins.
    await world.admin.operations.retry(failed["deploy"].id)
    again = await operations(world, instance)
    assert {op.queued for op in again.values()} == {True}
    assert again["deploy"].gate_preflight_id != failed["deploy"].gate_preflight_id
    await answer(await look(world))
    assert sorted(op.kind for op in await claimable(world)) == ["add", "add", "deploy"]


async def test_it_can_be_decommissioned_at_once(world: World) -> None:
    await publish(world)
    instance = await deploy(world)
    await answer(await look(world), found())
    await decommission(world, instance.id)
    assert (await world.admin.instances.get(instance.id)).status == "decommissioned"
    # Also while the app looks; what it says then is about nothing any more.
    second = await deploy(world, "second")
    work = await look(world)
    wanted = await world.admin.instances.request(second.id, "decommission")
    await answer(work)
    assert [op.id for op in await claimable(world)] == [wanted.id]


async def test_skipped(world: World) -> None:
    await publish(world)
    instance = await deploy(world, skip_preflight=True)
    made = await operations(world, instance)
    assert sorted(op.kind for op in await claimable(world)) == ["add", "deploy"]
    assert (made["deploy"].gate_preflight_id, made["deploy"].steps) == (None, [])
    work = Work(world.controller, *await _claim(world, made["deploy"]))
    await work.fail()
    await world.admin.operations.retry(work.operation_id)
    assert (await operations(world, instance))["deploy"].gate_preflight_id is None, "nor in a retry"
    wrong: list[object] = ["", "yes please", 7, None, {}]
    for value in wrong:
        body = {**request(world, ("head", "alc_x")).model_dump(mode="json"), "skip_preflight": value}
        token = (await world.admin.fetch_token()).access_token
        headers = {"Authorization": f"Bearer {token}"}
        async with httpx.AsyncClient(base_url=world.admin.api_url, headers=headers) as http:
            refused = await http.post("/v1/app-instances", json=body)
        assert (refused.status_code, refused.json()["code"]) == (422, "invalid_request")
        assert "/skip_preflight" in refused.text


async def _claim(world: World, operation: Operation) -> tuple[Operation, int]:
    claim = await world.controller.operations.claim(operation.id, "test")
    return claim.operation, claim.fencing_token


async def test_what_was_begun_is_not_looked_at_again(world: World) -> None:
    """After the deploy has brought something, the app's checks would find that."""
    await publish(world)
    instance = await deploy(world)
    await answer(await look(world))
    work = Work(world.controller, *await _claim(world, (await operations(world, instance))["deploy"]))
    await work.fail()
    await world.admin.operations.retry(work.operation_id)
    assert sorted(op.kind for op in await claimable(world)) == ["add", "deploy"]


async def test_checks_that_come_to_no_end(world: World, settings: Settings) -> None:
    await publish(world)
    instance = await deploy(world, tails=0)
    work = await look(world)
    error = OperationError(code="controller_bug", detail="KeyError", retryable=False)
    await work.client.operations.fail(work.operation_id, work.fencing_token, error)
    failed = (await operations(world, instance))["deploy"]
    assert failed.error is not None
    assert failed.error.code == "preflight_failed"
    assert "did not come to an end: KeyError" in failed.error.detail

    # Nobody looks at all: the deploy fails when its own time is over.
    second = await deploy(world, "second", tails=0)
    (looking,) = await claimable(world)
    deadline = (looking.deadline - looking.created_at).total_seconds()
    assert deadline > 300, "it waits for a controller as long as a deploy does"
    with connect(settings) as connection:
        connection.execute("UPDATE operations SET deadline = now() - interval '1 s' WHERE id = %s", (looking.id,))

    async def ended() -> Operation | None:
        op = (await operations(world, second))["deploy"]
        return op if op.state.is_final else None

    overdue = await world.until(ended, "the deploy that nobody looked for fails")
    assert overdue.error is not None
    assert "no controller claimed" in overdue.error.detail


async def test_a_deploy_that_was_called_off(world: World) -> None:
    await publish(world)
    instance = await deploy(world)
    work = await look(world)
    made = await operations(world, instance)
    await world.admin.operations.cancel(made["deploy"].id)
    await answer(work)
    assert await claimable(world) == []
    ended = await operations(world, instance)
    assert ended["deploy"].state == "cancelled"
    assert ended["add"].error is not None
    assert (ended["add"].state, ended["add"].error.code) == ("failed", "predecessor_failed")
    await world.admin.operations.retry(made["deploy"].id)
    await answer(await look(world))
    assert sorted(op.kind for op in await claimable(world)) == ["add", "deploy"]


async def test_a_lost_look_is_done_again(world: World, settings: Settings) -> None:
    """The process that looks dies half-way."""
    await publish(world)
    await deploy(world)
    lost = await look(world)
    with connect(settings) as connection:
        connection.execute(
            "UPDATE operations SET lease_expires_at = now() - interval '1 s' WHERE id = %s", (lost.operation_id,)
        )
    await answer(await look(world))
    assert sorted(op.kind for op in await claimable(world)) == ["add", "deploy"]


async def test_the_runtime_waits_for_a_machine_that_does_not_answer(world: World) -> None:
    """A machine that is away for a moment does not end a deploy, as it did not before."""
    await publish(world)
    looks: list[bool] = []
    done: list[str] = []

    async def check(context: PreflightContext) -> list[Finding]:
        looks.append(context.holds_up)
        if len(looks) < 2:
            raise MachineUnreachableError("it boots")
        return []

    async def work(context: OperationContext) -> None:
        done.append(context.operation.kind)
        if (member_id := context.operation.member_id) is not None:
            await context.report_member(member_id, status=MemberStatus.READY)

    handlers = {"preflight": preflight_handler(check), "deploy": work, "add": work}
    controller = Controller(world.controller, handlers, holder="test")
    running = asyncio.create_task(controller.run())
    try:
        await deploy(world)

        async def both() -> bool:
            return sorted(done) == ["add", "deploy"]

        await world.until(both, "the deploy and its addition are done")
    finally:
        controller.stop()
        await running
    assert looks == [True, True]
