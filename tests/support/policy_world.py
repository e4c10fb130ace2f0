"""Everything that a request can name, and everybody who can ask: the world that the policy matrix walks in."""

import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import httpx

from gpuaas_contract import ids
from gpuaas_contract.access import AccessGrant
from gpuaas_contract.agent_link import AGENT_AUDIENCE
from gpuaas_contract.identity import PrincipalKind, Role
from gpuaas_contract.operations import OperationCreate
from gpuaas_contract.secrets import SecretKind, SecretSpec
from gpuaas_platform.identity.rules.policy import CONTROLLER, Caller, RoleGrant, Scope
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials, ServiceAccountCredentials
from gpuaas_sdk.errors import ApiError
from gpuaas_stack.settings import Settings
from tests.support.artifacts import promoted, push, signing_key
from tests.support.services import admin_credentials
from tests.support.world import World, make_key, sign_assertion

PASSWORD = "a long enough password"
PUBLIC_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"


@dataclass
class Asker:
    """One kind of principal: who it is by the policy, and a bearer for its next request."""

    name: str
    bearer: Callable[[], Awaitable[str | None]]
    caller: Caller | None = None
    client: GpuaasClient | None = None
    is_agent_of: str | None = None
    is_stranger: bool = False
    """Has no role in the project that the world is about: must not learn anything of it."""


@dataclass
class PolicyWorld:
    world: World
    askers: list[Asker]
    values: dict[str, str]
    """By the name of a path parameter, a query parameter or a field of a body."""
    project_ids: set[str] = field(default_factory=set)
    """Ids that a stranger must not see in any answer."""
    login: dict[str, str] = field(default_factory=dict)
    account_key: str = ""

    @property
    def tenant_scope(self) -> Scope:
        return Scope(tenant_id=self.world.tenant.id)

    @property
    def project_scope(self) -> Scope:
        return Scope(self.world.tenant.id, self.world.project.id)

    @property
    def instance_scope(self) -> Scope:
        return Scope(self.world.tenant.id, self.world.project.id, self.world.app_slug)

    async def fresh(self, name: str) -> str:
        """For what works once, or must not be taken yet."""
        if name == "join_token":
            return (await self.world.admin.join_tokens.create(f"node-{secrets.token_hex(4)}")).token
        if name == "client_assertion":
            return sign_assertion(self.account_key, self.values["service_account_id"], "gpuaas")
        return f"x{secrets.token_hex(6)}"

    async def session_of(self, asker: Asker) -> str:
        """Everybody has only their own: who has none tries with somebody else's."""
        owner = asker if asker.caller is not None and asker.caller.kind == PrincipalKind.USER else self.admin_asker
        async with httpx.AsyncClient(base_url=self.world.admin.api_url) as http:
            headers = {"Authorization": f"Bearer {await owner.bearer()}"}
            return str((await http.get("/v1/auth/session", headers=headers)).json()["id"])

    async def ssh_key_of(self, asker: Asker) -> str:
        """Likewise."""
        owner = asker if asker.caller is not None and asker.caller.kind == PrincipalKind.USER else self.admin_asker
        assert owner.client is not None
        async for key in owner.client.ssh_keys.list():
            return key.id
        return (await owner.client.ssh_keys.add("own", PUBLIC_KEY)).id

    @property
    def admin_asker(self) -> Asker:
        return next(asker for asker in self.askers if asker.name == "platform admin")

    async def grant_for(self, asker: Asker) -> str:
        """A stream needs a grant of one's own; who may not have one tries with somebody else's."""
        for client in (asker.client, self.world.admin):
            try:
                if client is not None:
                    grant: AccessGrant = await client.allocations.access(self.values["allocation_id"], PUBLIC_KEY)
                    return grant.id
            except ApiError:
                continue
        raise AssertionError("nobody may have access")


async def _user_code(settings: Settings) -> str:
    """Of a command line that waits to be let in."""
    async with httpx.AsyncClient(base_url=settings.api_url) as http:
        answer = await http.post("/v1/oauth/device_authorization", data={"client_id": "matrix"})
        return str(answer.json()["user_code"])


@asynccontextmanager
async def policy_world(settings: Settings) -> AsyncIterator[PolicyWorld]:
    name = secrets.token_hex(4)
    async with AsyncExitStack() as stack:
        credentials = PasswordCredentials(*admin_credentials(settings))
        admin = await stack.enter_async_context(GpuaasClient(settings.api_url, credentials))
        world = await stack.enter_async_context(World.create(admin, name))
        makers = _Makers(world, stack, name)
        askers = await makers.askers()
        values = await _values(world)
        of_members = ("project_id", "allocation_id", "volume_id", "instance_id", "member_id")
        seen_by_members = {values[key] for key in of_members}
        hidden = seen_by_members | {values["operation_id"], values["delivery_id"], makers.account_id}
        hidden |= {
            values[key] for key in ("credential_id", "secret_id", "secret_delivery_id", "artifact_id", "trusted_key_id")
        }
        hidden.add(values["preflight_id"])
        values |= {"service_account_id": makers.account_id, "user_id": makers.user_id}
        membership = await admin.memberships.create(makers.user_id, Role.PROJECT_MEMBER, project_id=world.project.id)
        (key,) = await admin.service_accounts.list_keys(makers.account_id)
        grant = await admin.grants.create(values["allocation_id"], makers.user_id)
        values |= {"grant_id": grant.id}
        hidden |= {grant.id}
        values |= {"membership_id": membership.id, "key_id": key.id, "user_code": await _user_code(settings)}
        hidden |= {membership.id, key.id}
        yield PolicyWorld(world, askers, values, hidden, makers.login, makers.account_key)


async def _values(world: World) -> dict[str, str]:
    """An instance with an operation that is being worked on, one delivery of which is still under way."""
    own = await promoted(world.admin, app_slug=world.app_slug)
    trusted = await world.admin.trusted_keys.add("matrix", signing_key().public, project_id=world.project.id)
    artifact = await push(world.admin, b"of the project", project_id=world.project.id)
    allocation = await world.allocation()
    instance = await world.deploy(head=allocation)
    members = [member async for member in world.admin.instances.members(instance.id)]
    (operation_id,) = await world.claimable()
    claim = await world.controller.operations.claim(operation_id, "matrix")
    world.node.holds = {"deliver_artifact"}
    delivery = await world.controller.operations.deliver(
        operation_id, claim.fencing_token, allocation_id=allocation.id, digest=own.digest
    )
    bulk = await world.admin.instances.add_members(instance.id, "tail", [allocation.id])
    volume = await world.admin.volumes.create(world.project.id, "home", size_gib=1)
    credential = await world.admin.credentials.create(world.project.id, "matrix")
    lease = (operation_id, claim.fencing_token)
    version = await world.admin.app_versions.get(world.app_slug)
    (entitlement,) = await world.admin.entitlements.list(app_slug=world.app_slug).all()
    secret = await world.controller.secrets.ensure(*lease, "matrix", SecretSpec(kind=SecretKind.BYTES))
    wrapped = await world.controller.secrets.deliver(secret.id, *lease)
    preflight = await world.admin.preflights.instance(instance.id, OperationCreate(kind="decommission"))
    return {
        "volume_id": volume.id,
        "credential_id": credential.id,
        "number": "1000000007",
        "secret_id": secret.id,
        "secret_delivery_id": wrapped.id,
        "preflight_id": preflight.id,
        "tenant_id": world.tenant.id,
        "project_id": world.project.id,
        "owner_id": world.project.id,
        "allocation_id": allocation.id,
        "instance_id": instance.id,
        "member_id": members[0].id,
        "port": "voice",
        "operation_id": operation_id,
        "bulk_id": bulk.id,
        "delivery_id": delivery.id,
        "node_id": world.node.node_id,
        "stream_id": ids.new_id(ids.STREAM),
        "app_version_id": version.id,
        "correlation_id": instance.correlation_id,
        "entitlement_id": entitlement.id,
        "slug": world.app_slug,
        "app_slug": world.app_slug,
        "version": "latest",
        "digest": own.content_digest,
        "artifact_id": artifact.id,
        "trusted_key_id": trusted.id,
        "component_key": "head",
        "repository": artifact.repository,
        "upload_id": "00000000-0000-4000-8000-000000000000",
    }


@dataclass
class _Makers:
    world: World
    stack: AsyncExitStack
    name: str
    account_id: str = ""
    account_key: str = ""
    user_id: str = ""
    login: dict[str, str] = field(default_factory=dict)

    async def askers(self) -> list[Asker]:
        world, admin = self.world, self.world.admin
        tenant, project = world.tenant.id, world.project.id
        other_tenant = await admin.tenants.create(f"other-{self.name}")
        other_project = await admin.projects.create(tenant, f"other-{self.name}")
        other_app = await world.other_app()
        await self._node()
        # Nobody of the askers: what they do to this one must not change who they are.
        target = await admin.users.create(f"target-{self.name}@example.com", PASSWORD)
        self.user_id, self.login = target.id, {"email": target.email, "password": PASSWORD}
        return [
            Asker("anonymous", _nothing, is_stranger=True),
            Asker("bogus token", _bogus, is_stranger=True),
            await self._person("other tenant's admin", Role.TENANT_ADMIN, other_tenant.id, None, stranger=True),
            await self._person("other project's admin", Role.PROJECT_ADMIN, tenant, other_project.id, stranger=True),
            Asker("platform admin", _token(admin), _caller((RoleGrant(Role.PLATFORM_ADMIN),)), admin),
            await self._person("app publisher", Role.APP_PUBLISHER, None, None, app=world.app_slug, stranger=True),
            await self._person("tenant admin", Role.TENANT_ADMIN, tenant, None),
            await self._person("project admin", Role.PROJECT_ADMIN, tenant, project),
            await self._person("project member", Role.PROJECT_MEMBER, tenant, project),
            await self._person("project viewer", Role.PROJECT_VIEWER, tenant, project),
            await self._account("app's controller", world.app_slug),
            await self._account("other app's controller", other_app),
            await self._account("viewer account", None),
            await self._account("tenant's controller", world.app_slug, of_tenant=True),
            await self._account("tenant's viewer account", None, of_tenant=True),
            Asker("node agent", self._agent, is_agent_of=world.node.node_id),
            Asker("other node's agent", self._other_agent, is_agent_of=self._other_node, is_stranger=True),
        ]

    async def _person(
        self,
        title: str,
        role: Role,
        tenant_id: str | None,
        project_id: str | None,
        *,
        app: str | None = None,
        stranger: bool = False,
    ) -> Asker:
        admin = self.world.admin
        user = await admin.users.create(
            f"{title.replace(' ', '-').replace(chr(39), '')}-{self.name}@example.com", PASSWORD
        )
        where = {"project_id": project_id} if project_id else {"tenant_id": tenant_id} if tenant_id else {}
        where |= {"app_slug": app} if app else {}
        await admin.memberships.create(user.id, role, **where)
        client = GpuaasClient(admin.api_url, PasswordCredentials(user.email, PASSWORD))
        await self.stack.enter_async_context(client)
        grant = RoleGrant(role, where.get("tenant_id"), project_id, app)
        caller = _caller((grant,), tenant_ids=frozenset({tenant_id} if tenant_id else ()))
        return Asker(title, _token(client), caller, client, is_stranger=stranger)

    async def _account(self, title: str, app_slug: str | None, *, of_tenant: bool = False) -> Asker:
        admin, project = self.world.admin, self.world.project
        private, public = make_key()
        name = title.replace(" ", "-").replace("'", "")
        project_id, tenant_id = (None, project.tenant_id) if of_tenant else (project.id, None)
        account = await admin.service_accounts.create(project_id, name, public, tenant_id=tenant_id, app_slug=app_slug)
        client = GpuaasClient(admin.api_url, ServiceAccountCredentials(account.id, private))
        await self.stack.enter_async_context(client)
        if not of_tenant:
            self.account_id, self.account_key = account.id, private
        role = CONTROLLER if app_slug else Role.PROJECT_VIEWER
        grants = (RoleGrant(role, tenant_id, project_id),)
        caller = _caller(
            grants, PrincipalKind.SERVICE_ACCOUNT, app_slug=app_slug, tenant_ids=frozenset({project.tenant_id})
        )
        return Asker(title, _token(client), caller, client)

    async def _node(self) -> None:
        private, public = make_key()
        join = await self.world.admin.join_tokens.create(f"second-{self.name}")
        self._other_node = (await self.world.admin.nodes.enrol(join.token, public)).node_id
        self._other_key = private

    _other_node: str = ""
    _other_key: str = ""

    async def _agent(self) -> str:
        return self.world.node.token()

    async def _other_agent(self) -> str:
        return sign_assertion(self._other_key, self._other_node, AGENT_AUDIENCE)


async def _nothing() -> None:
    return None


async def _bogus() -> str:
    return "eyJraWQiOiIxIn0.e30.AAAA"


def _token(client: GpuaasClient) -> Callable[[], Awaitable[str | None]]:
    token: str | None = None

    async def cached() -> str | None:
        nonlocal token
        if token is None:
            token = (await client.fetch_token()).access_token
        return token

    return cached


def _caller(
    grants: tuple[RoleGrant, ...],
    kind: PrincipalKind = PrincipalKind.USER,
    app_slug: str | None = None,
    tenant_ids: frozenset[str] = frozenset(),
) -> Caller:
    return Caller(kind, "usr_matrix", "matrix", grants, app_slug, tenant_ids)
