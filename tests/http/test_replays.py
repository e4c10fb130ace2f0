"""Requests that are repeated with their idempotency key, after the caller has lost the right to make them."""

import secrets

import httpx
import pytest

from gpuaas_contract.identity import Membership, Role
from gpuaas_contract.instances import InstanceDeploy, Placement
from gpuaas_contract.problems import Code
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.errors import ForbiddenError, IdempotencyConflictError, NotEntitledError, NotFoundError
from gpuaas_stack.settings import Settings
from tests.http.test_catalogue import person
from tests.support.database import audited, connect
from tests.support.world import World


async def own_memberships(world: World, client: GpuaasClient) -> list[Membership]:
    me = (await client.principal()).id
    return [found async for found in world.admin.memberships.list(user_id=me)]


async def ask(client: GpuaasClient, method: str, path: str, key: str, body: object = None) -> httpx.Response:
    headers = {"Authorization": f"Bearer {await client.token()}", "Idempotency-Key": key}
    async with httpx.AsyncClient(base_url=client.api_url, headers=headers) as http:
        return await http.request(method, f"/v1{path}", json=body)


async def test_who_was_removed_from_the_project_is_told_of_nothing(world: World, settings: Settings) -> None:
    """Also of what is gone meanwhile: its first answer showed it."""
    async with person(world.admin, Role.PROJECT_ADMIN, project_id=world.project.id) as member:
        credentials, key = member.credentials, secrets.token_hex(8)
        made = await credentials.create(world.project.id, "shown", idempotency_key=key)
        ending = ("DELETE", f"/credentials/{made.id}", f"{key}-delete")
        deleted = (await ask(member, *ending)).json()
        assert await credentials.create(world.project.id, "shown", idempotency_key=key) == made
        assert (await ask(member, *ending)).json() == deleted
        (membership,) = await own_memberships(world, member)
        await world.admin.memberships.delete(membership.id)
        with pytest.raises(NotFoundError):
            await credentials.create(world.project.id, "shown", idempotency_key=key)
        again = await ask(member, *ending)
        assert (again.status_code, again.json()["code"]) == (404, Code.NOT_FOUND)
        me = (await member.principal()).id
        assert len(audited(settings, "create_credential", me, "denied")) == 1
        # Who comes back finds the answer where it was.
        await world.admin.memberships.create(me, Role.PROJECT_ADMIN, project_id=world.project.id)
        assert await credentials.create(world.project.id, "shown", idempotency_key=key) == made


async def test_who_may_only_look_now_is_forbidden(world: World) -> None:
    async with person(world.admin, Role.PROJECT_ADMIN, project_id=world.project.id) as member:
        key = secrets.token_hex(8)
        await member.credentials.create(world.project.id, "mine", idempotency_key=key)
        (membership,) = await own_memberships(world, member)
        await world.admin.memberships.delete(membership.id)
        me = (await member.principal()).id
        await world.admin.memberships.create(me, Role.PROJECT_VIEWER, project_id=world.project.id)
        with pytest.raises(ForbiddenError):
            await member.credentials.create(world.project.id, "mine", idempotency_key=key)


async def test_a_deploy_of_an_app_that_was_withdrawn(world: World) -> None:
    head = await world.allocation("head")
    placement = [Placement(component_key="head", allocation_id=head.id)]
    wanted = InstanceDeploy(
        project_id=world.project.id, app_slug=world.app_slug, name="once", placement_intent=placement
    )
    key = secrets.token_hex(8)
    async with person(world.admin, Role.PROJECT_ADMIN, project_id=world.project.id) as member:
        first = await member.instances.deploy(wanted, idempotency_key=key)
        assert await member.instances.deploy(wanted, idempotency_key=key) == first
        by_admin = await world.admin.entitlements.list(tenant_id=world.tenant.id).all()
        await world.admin.entitlements.revoke(by_admin[0].id)
        with pytest.raises(NotFoundError, match="there is no app"):
            await member.instances.deploy(wanted, idempotency_key=key)
        assert (await member.instances.get(first.id)).id == first.id


async def test_answers_of_the_version_before(world: World, settings: Settings) -> None:
    """It did not note the rights that an answer took. Those of service accounts never change, those of people may."""
    key = secrets.token_hex(8)
    async with person(world.admin, Role.PROJECT_ADMIN, project_id=world.project.id) as member:
        await member.credentials.create(world.project.id, "before", idempotency_key=key)
        instance = await world.deploy(head=await world.allocation("head"))
        (operation_id,) = await world.claimable()
        claim = ("POST", f"/operations/{operation_id}/claim", key, {"holder": "test"})
        claimed = (await ask(world.controller, *claim)).json()
        with connect(settings) as connection:
            connection.execute("UPDATE idempotency_keys SET rights = NULL WHERE key = %s", (key,))
        with pytest.raises(IdempotencyConflictError, match="before an upgrade"):
            await member.credentials.create(world.project.id, "before", idempotency_key=key)
        assert (await ask(world.controller, *claim)).json() == claimed
    assert instance.id == claimed["operation"]["instance_id"]


async def test_a_key_is_its_callers_own(world: World) -> None:
    """The same key in another's hand is another key, and a token that is over is answered with 401."""
    key = secrets.token_hex(8)
    body = {"project_id": world.project.id, "name": "mine"}
    async with person(world.admin, Role.PROJECT_ADMIN, project_id=world.project.id) as member:
        request = ("POST", "/credentials", key, body)
        assert (await ask(member, *request)).status_code == 201
        answer = await ask(world.admin, *request)
        assert (answer.status_code, answer.json()["code"]) == (409, Code.NAME_TAKEN)
        await world.admin.users.update((await member.principal()).id, disabled=True)
        answer = await ask(member, *request)
        assert (answer.status_code, "Idempotency-Replayed" in answer.headers) == (401, False)


async def test_an_account_that_was_bound_and_withdrawn(world: World) -> None:
    key = secrets.token_hex(8)
    made = world.admin.service_accounts.create
    first = await made(world.project.id, "again", app_slug=world.app_slug, idempotency_key=key)
    assert await made(world.project.id, "again", app_slug=world.app_slug, idempotency_key=key) == first
    (entitlement,) = await world.admin.entitlements.list(tenant_id=world.tenant.id).all()
    await world.admin.entitlements.revoke(entitlement.id)
    with pytest.raises(NotEntitledError):
        await made(world.project.id, "again", app_slug=world.app_slug, idempotency_key=key)
