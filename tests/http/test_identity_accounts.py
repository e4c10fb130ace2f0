"""Service accounts: whose they are, what they may do, how their keys rotate, and their end."""

import base64

import httpx
import pytest

from gpuaas_contract.identity import Role, ServiceAccountKeyKind, User
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import ClientSecretCredentials, PasswordCredentials, ServiceAccountCredentials, StaticToken
from gpuaas_sdk.errors import (
    ForbiddenError,
    InvalidStateError,
    NameTakenError,
    NotEmptyError,
    NotFoundError,
    UnauthenticatedError,
)
from gpuaas_stack.settings import Settings
from tests.support.database import connect
from tests.support.identity import PASSWORD, status_everywhere, unique
from tests.support.world import World, make_key, sign_assertion


@pytest.fixture
async def ada(admin: GpuaasClient) -> User:
    return await admin.users.create(f"{unique('ada')}@example.com", PASSWORD)


async def test_an_account_belongs_to_a_project_or_to_a_tenant(world: World, settings: Settings) -> None:
    admin = world.admin
    for wrong in (
        {"name": "both", "project_id": world.project.id, "tenant_id": world.tenant.id},
        {"name": "neither"},
        {"name": "role", "project_id": world.project.id, "role": "tenant_admin"},
        {"name": "role", "tenant_id": world.tenant.id, "role": "platform_admin"},
    ):
        headers = {"Authorization": f"Bearer {(await admin.fetch_token()).access_token}"}
        async with httpx.AsyncClient(base_url=settings.api_url, headers=headers) as http:
            answer = await http.post("/v1/service-accounts", json=wrong)
            assert (answer.status_code, answer.json()["code"]) == (422, "invalid_request")
    other = await admin.projects.create(world.tenant.id, unique("other"))
    foreign = await admin.projects.create((await admin.tenants.create(unique("t"))).id, "foreign")

    async def account(role: Role | None, **scope: str | None) -> GpuaasClient:
        made = await admin.service_accounts.create(
            scope.get("project_id"),
            unique("a"),
            role=role,
            **{name: value for name, value in scope.items() if name == "tenant_id"},
        )
        secret = (await admin.service_accounts.add_secret(made.id)).secret
        return GpuaasClient(settings.api_url, ClientSecretCredentials(made.id, str(secret)))

    async with await account(Role.PROJECT_ADMIN, tenant_id=world.tenant.id) as everywhere:
        seen = {project.id async for project in everywhere.projects.list()}
        assert seen == {world.project.id, other.id}
        assert (await everywhere.allocations.create(other.id, "mine")).project_id == other.id
        with pytest.raises(ForbiddenError):
            await everywhere.projects.create(world.tenant.id, "more")
        with pytest.raises(ForbiddenError):
            await everywhere.service_accounts.create(None, "worse", tenant_id=world.tenant.id, role=Role.TENANT_ADMIN)
        with pytest.raises(NotFoundError):
            await everywhere.projects.get(foreign.id)
        principal = await everywhere.principal()
        assert (principal.tenant_id, principal.project_id, principal.role) == (
            world.tenant.id,
            None,
            Role.PROJECT_ADMIN,
        )
    async with await account(Role.TENANT_ADMIN, tenant_id=world.tenant.id) as tenant_admin:
        assert (await tenant_admin.projects.create(world.tenant.id, unique("p"))).tenant_id == world.tenant.id
    async with await account(None, project_id=world.project.id) as viewer:
        assert {project.id async for project in viewer.projects.list()} == {world.project.id}
        with pytest.raises(ForbiddenError):
            await viewer.allocations.create(world.project.id, "mine")
    async with await account(Role.PROJECT_ADMIN, project_id=world.project.id) as project_admin:
        assert (await project_admin.allocations.create(world.project.id, unique("m"))).name
        with pytest.raises(NotFoundError):
            await project_admin.allocations.create(other.id, "mine")


async def test_a_tenants_controller_works_in_all_its_projects(world: World, settings: Settings) -> None:
    private, public = make_key()
    admin = world.admin
    made = await admin.service_accounts.create(
        None, "tenant-wide", public, tenant_id=world.tenant.id, app_slug=world.app_slug
    )
    await world.deploy(head=await world.allocation())
    async with GpuaasClient(settings.api_url, ServiceAccountCredentials(made.id, private)) as controller:
        (operation,) = [op async for op in controller.operations.list(claimable=True)]
        claim = await controller.operations.claim(operation.id, "tenant-wide")
        assert claim.fencing_token > 0
    listed = [account.id async for account in admin.service_accounts.list(tenant_id=world.tenant.id)]
    assert listed == [made.id]
    with pytest.raises(NotEmptyError):
        await admin.tenants.delete(world.tenant.id)


async def test_keys_rotate_with_two_valid_ones_meanwhile(world: World, settings: Settings) -> None:
    accounts = world.admin.service_accounts
    (old_private, old_public), (new_private, new_public), (_, third) = make_key(), make_key(), make_key()
    account = await accounts.create(world.project.id, unique("rotating"), old_public)
    (old_key,) = await accounts.list_keys(account.id)
    new_key = await accounts.add_key(account.id, new_public, kid="next")
    with pytest.raises(InvalidStateError) as refused:
        await accounts.add_key(account.id, third)
    assert refused.value.code == "key_limit"
    assert {action.action for action in refused.value.allowed_actions} == {"revoke"}

    async def token(private: str) -> str:
        async with GpuaasClient(settings.api_url, ServiceAccountCredentials(account.id, private)) as client:
            return (await client.fetch_token()).access_token

    old_token, new_token = await token(old_private), await token(new_private)
    assert await status_everywhere(old_token, settings.api_url) == {200}
    assert await status_everywhere(new_token, settings.api_url) == {200}
    async with GpuaasClient(settings.api_url, ServiceAccountCredentials(account.id, new_private)) as client:
        await client.principal()
        await accounts.revoke_key(account.id, old_key.id)
        # Its token was withdrawn with the other key's; it fetches another one and goes on.
        assert (await client.principal()).id == account.id
    assert await status_everywhere(old_token, settings.api_url) == {401}
    with pytest.raises(UnauthenticatedError):
        await token(old_private)
    with pytest.raises(NotFoundError):
        await accounts.revoke_key(account.id, old_key.id)
    await accounts.add_key(account.id, third)
    used = {key.id: key.last_used_at for key in await accounts.list_keys(account.id)}
    assert used[new_key.id] is not None


async def test_an_assertion_may_say_which_key_signed_it(world: World, settings: Settings) -> None:
    accounts = world.admin.service_accounts
    (private, public), (_, other_public) = make_key(), make_key()
    account = await accounts.create(world.project.id, unique("named"), other_public)
    await accounts.add_key(account.id, public, kid="mine")
    await accounts.revoke_key(account.id, (await accounts.list_keys(account.id))[0].id)
    with pytest.raises(NameTakenError):
        await accounts.add_key(account.id, other_public, kid="mine")

    async def exchange(kid: str | None) -> int:
        form = {
            "grant_type": "client_credentials",
            "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
            "client_assertion": sign_assertion(private, account.id, "gpuaas", kid=kid),
        }
        async with httpx.AsyncClient(base_url=settings.api_url) as http:
            return (await http.post("/v1/oauth/token", data=form)).status_code

    (key,) = await accounts.list_keys(account.id)
    assert [await exchange(kid) for kid in ("mine", key.id, None, "another")] == [200, 200, 200, 401]


async def test_a_secret_is_shown_once_and_kept_as_a_hash(world: World, settings: Settings) -> None:
    accounts = world.admin.service_accounts
    account = await accounts.create(world.project.id, unique("secretive"))
    key = unique("secret")
    made = await accounts.add_secret(account.id, idempotency_key=key)
    assert made.kind == ServiceAccountKeyKind.SECRET
    assert made.secret is not None
    replayed = await accounts.add_secret(account.id, idempotency_key=key)
    assert (replayed.id, replayed.secret) == (made.id, None)
    (listed,) = await accounts.list_keys(account.id)
    assert listed.secret is None
    with connect(settings) as database:
        for table in ("service_account_keys", "idempotency_keys", "audit_entries", "changes"):
            rows = database.execute(f"SELECT * FROM {table}".encode()).fetchall()
            assert made.secret not in str(rows), table
    second = await accounts.add_secret(account.id)
    with pytest.raises(InvalidStateError):
        await accounts.add_secret(account.id)
    form = {"grant_type": "client_credentials"}
    async with httpx.AsyncClient(base_url=settings.api_url) as http:

        async def post(secret: str) -> int:
            body = {**form, "client_id": account.id, "client_secret": secret}
            return (await http.post("/v1/oauth/token", data=body)).status_code

        async def basic(secret: str) -> httpx.Response:
            encoded = base64.b64encode(f"{account.id}:{secret}".encode()).decode()
            return await http.post("/v1/oauth/token", data=form, headers={"Authorization": f"Basic {encoded}"})

        for secret in (made.secret, str(second.secret)):
            assert await post(secret) == 200
            assert (await basic(secret)).status_code == 200
        wrong = await basic("wrong")
        assert (wrong.status_code, wrong.json()["error"]) == (401, "invalid_client")
        assert wrong.headers["www-authenticate"] == "Basic"
        await accounts.revoke_key(account.id, made.id)
        assert (await post(made.secret), await post(str(second.secret))) == (401, 200)


async def test_disabling_and_deleting_an_account_works_at_once_everywhere(
    world: World, settings: Settings, second_api_url: str
) -> None:
    accounts, urls = world.admin.service_accounts, (settings.api_url, second_api_url)
    token = (await world.controller.fetch_token()).access_token
    assert await status_everywhere(token, *urls) == {200}
    disabled = await accounts.update(world.account.id, disabled=True)
    assert disabled.disabled
    assert await status_everywhere(token, *urls) == {401}
    with pytest.raises(UnauthenticatedError):
        await world.controller.fetch_token()
    await accounts.update(world.account.id, disabled=False, revision=disabled.revision)
    assert await status_everywhere(token, *urls) == {401}
    token = (await world.controller.fetch_token()).access_token
    assert await status_everywhere(token, *urls) == {200}
    await accounts.delete(world.account.id)
    assert await status_everywhere(token, *urls) == {401}
    with pytest.raises(UnauthenticatedError):
        await world.controller.fetch_token()
    with pytest.raises(NotFoundError):
        await accounts.get(world.account.id)


async def test_other_tenants_accounts_do_not_exist(world: World, settings: Settings, ada: User) -> None:
    admin = world.admin
    tenant = await admin.tenants.create(unique("t"))
    await admin.memberships.create(ada.id, Role.TENANT_ADMIN, tenant_id=tenant.id)
    (key,) = await admin.service_accounts.list_keys(world.account.id)
    _, public = make_key()
    async with GpuaasClient(settings.api_url, PasswordCredentials(ada.email, PASSWORD)) as stranger:
        accounts = stranger.service_accounts
        for refusal in (
            accounts.get(world.account.id),
            accounts.update(world.account.id, disabled=True),
            accounts.delete(world.account.id),
            accounts.list_keys(world.account.id),
            accounts.add_key(world.account.id, public),
            accounts.add_secret(world.account.id),
            accounts.revoke_key(world.account.id, key.id),
            accounts.create(None, "mine", tenant_id=world.tenant.id),
        ):
            with pytest.raises(NotFoundError):
                await refusal
    async with GpuaasClient(settings.api_url, StaticToken((await world.controller.fetch_token()).access_token)) as me:
        assert (await me.principal()).id == world.account.id
