"""Races on the services and real PostgreSQL: a stale token never writes, and every action is as it is said to be."""

import asyncio
import contextlib
import os
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gpuaas_contract.bulk import Policy
from gpuaas_contract.instances import MemberStatus
from gpuaas_contract.operations import OperationState
from gpuaas_contract.problems import Code
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.feed.storage import changes as change_store
from gpuaas_stack.postgres import DATABASE
from gpuaas_stack.settings import Settings
from tests.support.chance import SEED
from tests.support.lifecycle import INSTANCE_KINDS, MEMBER_KINDS
from tests.support.processes import fresh_database
from tests.support.service_world import ServiceWorld

SHARE = 1 if os.environ.get("GPUAAS_SOAK") else 3


@pytest.fixture
async def services(servers: Settings) -> AsyncIterator[ServiceWorld]:
    with fresh_database(servers, DATABASE) as url:
        async with ServiceWorld.opened(url) as world:
            yield world


async def test_a_stale_token_never_writes_whoever_races(services: ServiceWorld) -> None:
    """Controllers claim and write while leases run out under them. What was written belongs to the token that was the
    newest then: steps carry the attempt, and only its own controller wrote it."""
    (head,) = await services.allocations(1)
    instance = await services.deploy(head)
    (operation,) = await services.operations(instance.id)
    written: dict[int, set[str]] = {}
    tokens: list[int] = []
    done = asyncio.Event()

    async def controller(number: int) -> None:
        for turn in range(60):
            try:
                claim = await services.claim(operation.id, number)
            except Refusal as refusal:
                assert refusal.code in {Code.LEASE_HELD, Code.INVALID_STATE}  # noqa: PT017 - anything else is news
                await asyncio.sleep(0)
                continue
            tokens.append(claim.fencing_token)
            for count in range(3):
                key = f"c{number}-t{turn}-{count}"
                try:
                    await services.step(operation.id, claim.fencing_token, number, key=key)
                except Refusal as refusal:
                    assert refusal.code == Code.STALE_LEASE  # noqa: PT017 - anything else is news
                    break
                written.setdefault(claim.operation.attempt, set()).add(key)
        done.set()

    async def time_passes() -> None:
        while not done.is_set():
            await services.expire_lease(operation.id)
            await services.sweep()

    async with asyncio.TaskGroup() as group:
        group.create_task(time_passes())
        for number in range(4):
            group.create_task(controller(number))
    assert len(tokens) == len(set(tokens)) > 10
    (after,) = await services.operations(instance.id)
    seen: dict[int, set[str]] = {}
    for step in after.steps:
        seen.setdefault(step.attempt, set()).add(step.key)
    assert seen == written
    assert all(len({key.split("-")[0] for key in keys}) == 1 for keys in seen.values()), "two wrote in one attempt"


async def test_only_one_of_many_requests_at_once_gets_the_member(services: ServiceWorld) -> None:
    head, tail = await services.allocations(2)
    instance = await services.deploy(head, tail)
    while claimable := await services.claimable():
        await services.finish(await services.claim(claimable[0].id))
    member = next(m for m in await services.members(instance.id) if m.component_key == "tail")

    async def ask(kind: str) -> str:
        try:
            return (await services.act(services.requesting(instance.id, kind, member.id))).id
        except Refusal as refusal:
            return str(refusal.context.get("operation_id"))

    answers = await asyncio.gather(*(ask(kind) for kind in ["drain", "recover", "tune"] * 4))
    (winner,) = set(answers)
    claims = await asyncio.gather(*(services.claim(winner, number) for number in range(5)), return_exceptions=True)
    assert sum(not isinstance(claim, Refusal) for claim in claims) == 1


async def states(services: ServiceWorld) -> AsyncIterator[tuple[str, str, list[str]]]:
    """Instances in every kind of state that there is: a name for it, the instance, and machines that are free."""

    async def fresh(name: str, tails: int = 2, *, deployed: bool = True) -> tuple[str, list[str], list[Any]]:
        machines = await services.allocations(tails + 3)
        instance = await services.deploy(*machines[: tails + 1], name=name)
        while deployed and (found := [op for op in await services.claimable() if op.instance_id == instance.id]):
            await services.finish(await services.claim(found[0].id))
        members = [m for m in await services.members(instance.id) if m.component_key == "tail"]
        return instance.id, machines[tails + 1 :], members

    id, free, _ = await fresh("deploying", deployed=False)
    yield "deploying", id, free
    deploy = next(op for op in await services.operations(id) if op.kind == "deploy")
    await services.fail(deploy.id, (await services.claim(deploy.id)).fencing_token)
    yield "deploy failed", id, free
    id, free, _ = await fresh("running")
    yield "running", id, free
    id, free, _ = await fresh("full", tails=3)
    yield "as many members as there may be", id, free
    for kind in MEMBER_KINDS:
        id, free, tails = await fresh(f"m-{kind}")
        if kind == "resume":
            await services.act(services.requesting(id, "drain", tails[0].id))
            await services.finish(await services.claim((await services.operations(id))[-1].id))
            yield "drained", id, free
        wanted = await services.act(services.requesting(id, kind, tails[0].id))
        yield f"{kind} pending", id, free
        await services.act(services.requesting(id, "tune", tails[0].id, queue=True)) if kind != "remove" else None
        claim = await services.claim(wanted.id)
        yield f"{kind} running", id, free
        await services.act(services.cancelling(wanted.id))
        yield f"{kind} to be cancelled", id, free
        await services.expire_lease(wanted.id)
        yield f"{kind} whose controller is silent", id, free
        await services.sweep()
        yield f"{kind} cancelled", id, free
        claim = await services.claim((await services.act(services.retrying(wanted.id))).id)
        await services.fail(wanted.id, claim.fencing_token)
        yield f"{kind} failed", id, free
        await services.finish(await services.claim((await services.act(services.retrying(wanted.id))).id))
        yield f"{kind} done", id, free
    id, free, tails = await fresh("replacing")
    wanted = await services.act(services.requesting(id, "replace", tails[0].id, allocation_id=free[0]))
    yield "replace pending", id, free[1:]
    await services.fail(wanted.id, (await services.claim(wanted.id)).fencing_token, retryable=False)
    yield "replace failed for good", id, free[1:]
    for kind in ("stop", "restart", "rehearse"):
        id, free, _ = await fresh(f"i-{kind}")
        wanted = await services.act(services.requesting(id, kind))
        yield f"{kind} pending", id, free
        claim = await services.claim(wanted.id)
        yield f"{kind} running", id, free
        await services.fail(wanted.id, claim.fencing_token)
        yield f"{kind} failed", id, free
        await services.finish(await services.claim((await services.act(services.retrying(wanted.id))).id))
        yield f"{kind} done", id, free
        wanted = await services.act(services.requesting(id, "decommission"))
        yield f"decommissioning after {kind}", id, free
        await services.fail(wanted.id, (await services.claim(wanted.id)).fencing_token)
        yield "decommission failed", id, free
        await services.act(services.abandoning(id))
        yield "abandoned", id, free


async def test_allowed_actions_are_true_in_every_state(services: ServiceWorld) -> None:
    """In each state a third of all that can be asked for is tried: other ones in each run, and all in `make soak`."""
    print(f"GPUAAS_SEED={SEED}")
    draw = random.Random(SEED)
    inputs: dict[str, dict[str, Any]] = {"upgrade": {"version": "1.2.0"}, "configure": {"inputs": {}}}
    wrong, tried, names = [], 0, set()
    async for name, id, free in states(services):
        names.add(name)
        attempts: list[tuple[str, bool, Any]] = []
        instance = await services.instance(id)
        actions = {action.action for action in instance.allowed_actions}
        for kind in [*INSTANCE_KINDS, "decommission", "deploy", "drain", "sing"]:
            effect = services.requesting(id, kind, **inputs.get(kind, {}))
            attempts.append((f"{kind} on the instance", kind in actions, effect))
        attempts.append(("abandon", "abandon" in actions, services.abandoning(id)))
        attempts.append(("add", "add" in actions, services.adding(id, free[:1], Policy.ALL_OR_NOTHING)))
        for member in await services.members(id):
            allowed = {action.action for action in member.allowed_actions}
            what = f"{member.component_key} that is {member.status}"
            for kind in [*MEMBER_KINDS, "add", "restart", "sing"]:
                attempts.append((f"{kind} on {what}", kind in allowed, services.requesting(id, kind, member.id)))
            replace = services.requesting(id, "replace", member.id, allocation_id=free[0])
            attempts.append((f"replace of {what}", "replace" in allowed, replace))
            attempts.append((f"forget {what}", "forget" in allowed, services.forgetting(member.id)))
        for operation in await services.operations(id):
            allowed = {action.action for action in operation.allowed_actions}
            what = f"{operation.kind} that is {operation.state}"
            attempts.append((f"retry {what}", "retry" in allowed, services.retrying(operation.id)))
            attempts.append((f"cancel {what}", "cancel" in allowed, services.cancelling(operation.id)))
        for what, is_allowed, effect in draw.sample(attempts, len(attempts) // SHARE):
            refusal = await services.attempt(effect)
            tried += 1
            if is_allowed != (refusal is None):
                said = "allowed" if is_allowed else "not allowed"
                wrong.append(f"{name}: {what} is said to be {said}: {refusal and refusal.detail}")
            assert refusal is None or refusal.detail
    assert not wrong, "\n".join(wrong)
    assert len(names) > 45
    assert tried > 1_500 // SHARE


async def test_a_silent_controller_is_shown_and_anybody_takes_over(services: ServiceWorld) -> None:
    head, tail = await services.allocations(2)
    instance = await services.deploy(head, tail)
    first = await services.claim((await services.operations(instance.id))[0].id, 0)
    id = first.operation.id
    await services.expire_lease(id)
    shown = (await services.operations(instance.id))[0]
    assert shown.lease is not None
    assert (shown.lease.expired, shown.lease.holder) == (True, "controller-0")
    await services.sweep()
    await services.sweep()
    async with services.database.system_transaction() as tx:
        told = await tx.all("SELECT message FROM changes WHERE resource_id = %(id)s AND event = 'lease_expired'", id=id)
    assert [row["message"] for row in told] == ["controller-0 went silent; any controller of echo can take over"]
    second = await services.claim(id, 1)
    assert second.fencing_token > first.fencing_token
    with pytest.raises(Refusal, match="is over"):
        await services.step(id, first.fencing_token, 0)
    assert (await services.finish(second, 1)).state == OperationState.SUCCEEDED

    # A deadline becomes a failure with something to do about it; what waits in a queue has not begun its time.
    adding = (await services.operations(instance.id))[1]
    await services.finish(await services.claim(adding.id))
    member = adding.member_id
    drain = await services.act(services.requesting(instance.id, "drain", member))
    queued = await services.act(services.requesting(instance.id, "resume", member, queue=True))
    for operation in (drain, queued):
        await services.expire_deadline(operation.id)
    await services.sweep()
    late, followed = (await services.operations(instance.id))[-2:]
    assert late.error is not None
    assert (late.state, late.error.code) == (OperationState.FAILED, "deadline_exceeded")
    assert "check that the app's controller runs" in late.error.detail
    assert [action.action for action in late.allowed_actions] == ["retry"]
    assert followed.error is not None
    assert (followed.state, followed.error.code) == (OperationState.CANCELLED, "predecessor_failed")
    statuses = {m.id: m.status for m in await services.members(instance.id)}
    assert statuses[str(member)] == MemberStatus.READY


async def test_the_feed_keeps_the_order_of_revisions_while_many_work(services: ServiceWorld) -> None:
    """Controllers end operations of several instances at once, people ask for more, and the sequencer runs beside."""
    instances = []
    for number in range(4):
        machines = await services.allocations(4)
        instances.append((await services.deploy(*machines, name=f"load-{number}")).id)
    working = True

    async def sequencer() -> None:
        async with services.database.dedicated() as link:
            while working or await change_store.sequence(link):
                await change_store.sequence(link)
                await asyncio.sleep(0)

    async def controller(number: int) -> None:
        while found := await services.claimable():
            for operation in found[number:] + found[:number]:
                try:
                    await services.finish(await services.claim(operation.id, number), number)
                except Refusal as refusal:
                    assert refusal.code in {Code.LEASE_HELD, Code.INVALID_STATE}  # noqa: PT017 - others are news

    async def people(instance_id: str) -> None:
        for member in await services.members(instance_id):
            for kind in ("tune", "drain", "resume"):
                with contextlib.suppress(Refusal):
                    await services.act(services.requesting(instance_id, kind, member.id, queue=True))

    following = asyncio.create_task(sequencer())
    for _ in range(3):
        await asyncio.gather(*(people(id) for id in instances), *(controller(number) for number in range(3)))
    working = False
    await following
    async with services.database.system_transaction() as tx:
        rows = await tx.all("SELECT position, resource_id, revision FROM changes ORDER BY position")
    assert len(rows) > 300
    assert [row["position"] for row in rows] == list(range(rows[0]["position"], rows[0]["position"] + len(rows)))
    newest: dict[str, int] = {}
    for row in rows:
        assert row["revision"] >= newest.get(row["resource_id"], 0), f"{row['resource_id']} went back"
        newest[row["resource_id"]] = row["revision"]
