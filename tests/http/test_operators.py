"""The operator of an instance: one service account works on it, and no other one of the same app."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from gpuaas_contract.identity import Role, ServiceAccount
from gpuaas_contract.instances import (
    Condition,
    ConditionStatus,
    Instance,
    InstanceDeploy,
    MemberStatus,
    OperatorState,
    Placement,
)
from gpuaas_contract.problems import Code
from gpuaas_contract.secrets import SecretKind, SecretSpec
from gpuaas_sdk import Controller, ObserveContext, OperationContext
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import ServiceAccountCredentials
from gpuaas_sdk.errors import (
    ForbiddenError,
    InvalidRequestError,
    InvalidStateError,
    NotOperatorError,
    OperationRunningError,
    RevisionMismatchError,
    StaleLeaseError,
)
from gpuaas_stack.settings import Settings
from tests.http.test_reconcile import Observer
from tests.support.controller import Work
from tests.support.database import audited, connect
from tests.support.leases import decommission
from tests.support.world import World, make_key

PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"
SPEC = SecretSpec(kind=SecretKind.BYTES)


@asynccontextmanager
async def second(
    world: World, name: str = "second", **scope: Any
) -> AsyncIterator[tuple[ServiceAccount, GpuaasClient]]:
    """Another service account of the same app in the project, and its client."""
    private, public = make_key()
    where = {"project_id": world.project.id, **scope}
    account = await world.admin.service_accounts.create(
        where.pop("project_id"), name, public, **{"app_slug": world.app_slug, **where}
    )
    async with GpuaasClient(world.admin.api_url, ServiceAccountCredentials(account.id, private)) as client:
        yield account, client


async def request(world: World, operator_id: str | None, name: str = "greeter") -> InstanceDeploy:
    machine = await world.allocation(f"for-{name}")
    return InstanceDeploy(
        project_id=world.project.id,
        app_slug=world.app_slug,
        name=name,
        placement_intent=[Placement(component_key="head", allocation_id=machine.id)],
        operator_account_id=operator_id,
    )


async def deploy(world: World, operator_id: str | None, name: str = "greeter") -> Instance:
    return await world.admin.instances.deploy(await request(world, operator_id, name))


async def claimable(client: GpuaasClient, world: World) -> list[str]:
    return [op.id async for op in client.operations.list(project_id=world.project.id, claimable=True)]


async def test_only_the_operator_works(world: World, settings: Settings) -> None:
    other = world.controller
    async with second(world) as (account, operator):
        instance = await deploy(world, account.id)
        assert instance.operator_account_id == account.id
        assert instance.operator is not None
        assert (instance.operator.name, instance.operator.state) == ("second", OperatorState.AWAY)
        (id,) = await claimable(operator, world)
        assert await claimable(other, world) == []
        assert (await other.operations.get(id)).kind == "deploy", "it may look"
        with pytest.raises(NotOperatorError, match=account.id) as refused:
            await other.operations.claim(id, "other")
        assert refused.value.code == Code.NOT_OPERATOR
        assert audited(settings, "claim_operation", world.account.id, "denied")
        with pytest.raises(NotOperatorError):
            await other.reconcile_leases.claim(instance.id, "other")
        with pytest.raises(NotOperatorError):
            await other.instances.request(instance.id, "deploy")

        claim = await operator.operations.claim(id, "operator")
        token = claim.fencing_token
        (member,) = await operator.instances.members(instance.id).all()
        secret = await operator.secrets.ensure(id, token, "key", SPEC)
        theirs = Work(other, claim.operation, token)
        refusals = (
            other.operations.heartbeat(id, token),
            other.operations.yield_lease(id, token),
            other.operations.access(id, token, PUBLIC_KEY),
            other.operations.deliver(id, token, allocation_id=member.allocation_id, digest="sha256:" + "0" * 64),
            other.secrets.ensure(id, token, "mine", SPEC),
            other.secrets.deliver(secret.id, id, token),
            theirs.step("hello"),
            theirs.report_ready(),
            other.members.report(member.id, theirs, adapter_detail={"mine": 1}),
            theirs.complete(),
            theirs.fail(),
        )
        for refusal in refusals:
            with pytest.raises(NotOperatorError):
                await refusal
        delivery = await operator.secrets.deliver(secret.id, id, token)
        assert delivery.wrapping_token is not None
        with pytest.raises(NotOperatorError):
            await other.secret_deliveries.unwrap(delivery.id, delivery.wrapping_token)

        mine = Work(operator, claim.operation, token)
        await mine.report_ready()
        await mine.complete(**{member.id: MemberStatus.READY})
        found = await world.admin.instances.get(instance.id)
        assert found.status == "running"
        assert found.operator is not None
        assert (found.operator.state, found.operator.message) == (OperatorState.CONNECTED, "")


async def test_whom_a_deploy_may_name(world: World) -> None:
    slug = await world.other_app()
    elsewhere = await world.admin.projects.create(world.tenant.id, "elsewhere")
    _, public = make_key()
    accounts = world.admin.service_accounts
    bound_elsewhere = await accounts.create(world.project.id, "of-other-app", public, app_slug=slug)
    unbound = await accounts.create(world.project.id, "unbound", public, role=Role.PROJECT_VIEWER)
    stranger = await accounts.create(elsewhere.id, "stranger", public, app_slug=world.app_slug)
    disabled = await accounts.create(world.project.id, "tired", public, app_slug=world.app_slug)
    await accounts.update(disabled.id, disabled=True)
    body = await request(world, None)
    for account_id, words in {
        bound_elsewhere.id: "bound to",
        unbound.id: "bound to no app",
        stranger.id: "there is no service account",
        "sva_" + "0" * 26: "there is no service account",
        disabled.id: "is disabled",
    }.items():
        wanted = body.model_copy(update={"operator_account_id": account_id})
        with pytest.raises(InvalidRequestError, match=words) as refused:
            await world.admin.instances.deploy(wanted)
        assert refused.value.code == Code.OPERATOR_UNUSABLE
        assert [error.pointer for error in refused.value.errors] == ["/operator_account_id"]
        looked = await world.admin.preflights.deploy(wanted)
        assert [(f.code, f.severity) for f in looked.findings] == [("operator_unusable", "error")]
        assert looked.ok is False
    assert await world.admin.instances.list(project_id=world.project.id).all() == []

    async with second(world, "of-tenant", project_id=None, tenant_id=world.tenant.id) as (account, client):
        away = await world.admin.preflights.deploy(body.model_copy(update={"operator_account_id": account.id}))
        assert [(f.code, f.severity) for f in away.findings] == [("operator_not_connected", "warning")]
        assert "has never been connected" in away.findings[0].message
        await claimable(client, world)
        here = await world.admin.preflights.deploy(body.model_copy(update={"operator_account_id": account.id}))
        assert here.findings == []
        instance = await world.admin.instances.deploy(body.model_copy(update={"operator_account_id": account.id}))
        assert len(await claimable(client, world)) == 1
        assert instance.operator is not None
        assert instance.operator.state == OperatorState.CONNECTED


@pytest.mark.parametrize("value", ["", "none", 7, {}, "sva_" + "x" * 5_000, "sva_\x00", "usr_" + "0" * 26, "../x"])
async def test_nonsense_is_refused(world: World, value: object) -> None:
    instance = await deploy(world, None)
    token = (await world.admin.fetch_token()).access_token
    async with httpx.AsyncClient(base_url=world.admin.api_url, headers={"Authorization": f"Bearer {token}"}) as http:
        answer = await http.patch(f"/v1/app-instances/{instance.id}", json={"operator_account_id": value})
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
        for empty in ({}, {"mode": None}):
            answer = await http.patch(f"/v1/app-instances/{instance.id}", json=empty)
            assert answer.status_code == 422
    assert (await world.admin.instances.get(instance.id)).revision == instance.revision


async def test_another_operator(world: World, settings: Settings) -> None:
    instances, first = world.admin.instances, world.controller
    async with second(world) as (account, client):
        instance = await deploy(world, world.account.id)
        (id,) = await claimable(first, world)
        claim = await first.operations.claim(id, "first")
        with pytest.raises(OperationRunningError, match="disable the account") as refused:
            await instances.set_operator(instance.id, account.id)
        assert [action.action for action in refused.value.allowed_actions] == ["watch", "cancel"]
        assert (await instances.get(instance.id)).operator_account_id == world.account.id
        with connect(settings) as connection:  # Its controller has died.
            connection.execute("UPDATE operations SET lease_expires_at = now() - interval '1 s' WHERE id = %s", (id,))

        lease = await first.reconcile_leases.claim(instance.id, "first")
        known = await instances.get(instance.id)
        handed = await instances.set_operator(instance.id, account.id, idempotency_key="hand-over")
        assert handed.operator_account_id == account.id
        assert handed.reconcile_lease is None, "it ends with the right behind it"
        again = await instances.set_operator(instance.id, account.id, idempotency_key="hand-over")
        same = await instances.set_operator(instance.id, account.id)
        assert again.revision == same.revision == handed.revision == known.revision + 1
        assert len(audited(settings, "app_instance.set_operator", (await world.admin.principal()).id)) >= 1
        for refusal in (
            first.operations.heartbeat(id, claim.fencing_token),
            first.reconcile_leases.heartbeat(instance.id, lease.fencing_token),
            first.instances.report(
                instance.id,
                Observer(lease),
                conditions=[Condition(type="Healthy", status=ConditionStatus.TRUE, observed_generation=1)],
            ),
        ):
            with pytest.raises(NotOperatorError):
                await refusal
        assert await claimable(first, world) == []
        assert await claimable(client, world) == [id]
        with pytest.raises(RevisionMismatchError):
            await instances.set_operator(instance.id, None, revision=known.revision)
        with pytest.raises(ForbiddenError):
            await client.instances.set_operator(instance.id, None)

        anybody = await instances.set_operator(instance.id, None)
        assert (anybody.operator_account_id, anybody.operator) == (None, None)
        assert await claimable(first, world) == [id]
        renewed = await client.operations.claim(id, "second")
        with pytest.raises(StaleLeaseError):
            await first.operations.heartbeat(id, claim.fencing_token)
        work = Work(client, renewed.operation, renewed.fencing_token)
        await work.report_ready()
        await work.complete()
    await decommission(world, instance.id)
    with pytest.raises(InvalidStateError, match="decommissioned"):
        await instances.set_operator(instance.id, world.account.id)


async def test_an_operator_that_ended(world: World) -> None:
    """Nobody takes over unasked; what is so is said, and another one can be named."""
    instances, accounts = world.admin.instances, world.admin.service_accounts
    async with second(world) as (account, client):
        instance = await deploy(world, account.id)
        await claimable(client, world)
        await accounts.update(account.id, disabled=True)
        said = await world.admin.history.explain(instance.id)
        assert said.waiting[0].code == "operator_unusable"
        assert "is disabled" in said.summary
        assert said.instance.operator is not None
        assert said.instance.operator.state == OperatorState.DISABLED
    await accounts.delete(account.id)
    gone = await instances.get(instance.id)
    assert gone.operator is not None
    assert (gone.operator.state, gone.operator.name) == (OperatorState.DELETED, None)
    assert "name another service account, or none" in gone.operator.message
    assert await claimable(world.controller, world) == []
    await instances.set_operator(instance.id, world.account.id)
    assert len(await claimable(world.controller, world)) == 1


async def test_a_runtime_leaves_alone_what_is_not_its_own(world: World, settings: Settings) -> None:
    """Two controllers of one app: each works and observes for its own, and asks once for what is not."""
    worked: dict[str, list[str]] = {"first": [], "second": []}
    observed: dict[str, set[str]] = {"first": set(), "second": set()}

    def controller(client: GpuaasClient, who: str) -> Controller:
        async def deploying(context: OperationContext) -> None:
            worked[who].append(context.instance_id)

        async def observe(context: ObserveContext) -> None:
            observed[who].add(context.instance_id)

        return Controller(client, {"deploy": deploying}, holder=who, observe=observe, observe_seconds=0.5)

    async with second(world) as (account, client):
        controllers = [controller(world.controller, "first"), controller(client, "second")]
        running = [asyncio.create_task(each.run()) for each in controllers]
        try:
            made = [await deploy(world, account.id, f"g{number}") for number in range(3)]
            own = await deploy(world, world.account.id, "own")

            async def all_done() -> bool:
                return len(worked["second"]) == 3 and len(worked["first"]) == 1

            await world.until(all_done, "each controller has done its own deploys")

            async def all_seen() -> bool:
                return len(observed["second"]) == 3 and len(observed["first"]) == 1

            await world.until(all_seen, "each controller observes its own instances")
        finally:
            for each in controllers:
                each.stop()
            await asyncio.gather(*running)
    assert worked == {"first": [own.id], "second": worked["second"]}
    assert observed == {"first": {own.id}, "second": {instance.id for instance in made}}
    assert len(audited(settings, "claim_operation", world.account.id, "denied")) <= 3
    assert audited(settings, "claim_reconcile_lease", world.account.id, "denied") == []
