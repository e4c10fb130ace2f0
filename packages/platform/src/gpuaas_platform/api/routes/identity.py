"""Logging in; tenants, projects, people, service accounts."""

from typing import Annotated

from fastapi import Form, Request, Response

from gpuaas_contract.identity import (
    LoginRequest,
    Membership,
    MembershipCreate,
    Principal,
    PrincipalKind,
    Project,
    ProjectCreate,
    ProjectPage,
    ServiceAccount,
    ServiceAccountCreate,
    ServiceAccountPage,
    Tenant,
    TenantCreate,
    TenantPage,
    Token,
    User,
    UserCreate,
    UserPage,
)
from gpuaas_contract.problems import Code
from gpuaas_platform.api.context import Ctx, Limit, platform_of
from gpuaas_platform.api.routing import Routes
from gpuaas_platform.domain.errors import Refusal
from gpuaas_platform.domain.policy import Permission, Scope
from gpuaas_platform.services import identity
from gpuaas_platform.storage import identity as store

routes = Routes("identity")
ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


@routes.post("/auth/login", Permission.ANONYMOUS, response_model=Token)
async def log_in(request: Request, body: LoginRequest) -> Token:
    platform = platform_of(request)
    platform.limits.logins.take(body.email.lower())
    password = body.password.get_secret_value()
    user = await identity.check_password(platform.database, request.state.correlation_id, body.email, password)
    return await platform.tokens.issue(user["id"], user["epoch"])


@routes.post("/oauth/token", Permission.ANONYMOUS, response_model=Token)
async def exchange_client_assertion(
    request: Request,
    grant_type: Annotated[str, Form(max_length=100)],
    client_assertion_type: Annotated[str, Form(max_length=200)],
    client_assertion: Annotated[str, Form(max_length=4_000)],
) -> Token:
    if grant_type != "client_credentials" or client_assertion_type != ASSERTION_TYPE:
        raise Refusal(
            Code.INVALID_REQUEST, f"this platform takes grant_type=client_credentials with a {ASSERTION_TYPE}"
        )
    return await platform_of(request).tokens.exchange_assertion(client_assertion)


@routes.get("/principal", Permission.AUTHENTICATED, response_model=Principal)
async def get_principal(ctx: Ctx) -> Principal:
    memberships: list[Membership] = []
    project_id = None
    async with ctx.read() as tx:
        if ctx.caller.kind == PrincipalKind.USER:
            rows = await store.memberships_of(tx, ctx.caller.id)
            memberships = [Membership.model_validate(row) for row in rows]
        else:
            project_id = ctx.caller.project_ids[0]
    return Principal(
        kind=ctx.caller.kind,
        id=ctx.caller.id,
        name=ctx.caller.name,
        memberships=memberships,
        project_id=project_id,
        app_slug=ctx.caller.app_slug,
        token_expires_at=ctx.token_expires_at,
    )


@routes.post("/tenants", Permission.TENANT_CREATE, status_code=201, response_model=Tenant)
async def create_tenant(ctx: Ctx, body: TenantCreate) -> Response:
    return await ctx.mutate(lambda tx: identity.create_tenant(tx, ctx.caller, body), 201)


@routes.get("/tenants", Permission.AUTHENTICATED, response_model=TenantPage)
async def list_tenants(ctx: Ctx, cursor: str | None = None, limit: Limit = 100) -> TenantPage:
    async with ctx.read() as tx:
        return await identity.list_tenants(tx, ctx.caller, cursor, limit)


@routes.get("/tenants/{tenant_id}", Permission.TENANT_READ, response_model=Tenant)
async def get_tenant(ctx: Ctx, tenant_id: str) -> Response:
    async with ctx.read() as tx:
        return ctx.show(await identity.get_tenant(tx, ctx.caller, tenant_id))


@routes.post("/projects", Permission.PROJECT_CREATE, status_code=201, response_model=Project)
async def create_project(ctx: Ctx, body: ProjectCreate) -> Response:
    return await ctx.mutate(lambda tx: identity.create_project(tx, ctx.caller, body), 201)


@routes.get("/projects", Permission.AUTHENTICATED, response_model=ProjectPage)
async def list_projects(
    ctx: Ctx, tenant_id: str | None = None, cursor: str | None = None, limit: Limit = 100
) -> ProjectPage:
    async with ctx.read() as tx:
        return await identity.list_projects(tx, ctx.caller, tenant_id, cursor, limit)


@routes.get("/projects/{project_id}", Permission.PROJECT_READ, response_model=Project)
async def get_project(ctx: Ctx, project_id: str) -> Response:
    async with ctx.read() as tx:
        return ctx.show(await identity.get_project(tx, ctx.caller, project_id))


@routes.post("/users", Permission.USER_MANAGE, status_code=201, response_model=User)
async def create_user(ctx: Ctx, body: UserCreate) -> Response:
    ctx.caller.require(Permission.USER_MANAGE, Scope(), "user", body.email)
    password_hash = await identity.hash_password(body.password.get_secret_value())
    return await ctx.mutate(lambda tx: identity.create_user(tx, ctx.caller, body, password_hash), 201)


@routes.get("/users", Permission.USER_MANAGE, response_model=UserPage)
async def list_users(ctx: Ctx, cursor: str | None = None, limit: Limit = 100) -> UserPage:
    async with ctx.read() as tx:
        return await identity.list_users(tx, ctx.caller, cursor, limit)


@routes.post("/memberships", Permission.MEMBERSHIP_CREATE, status_code=201, response_model=Membership)
async def create_membership(ctx: Ctx, body: MembershipCreate) -> Response:
    return await ctx.mutate(lambda tx: identity.create_membership(tx, ctx.caller, body), 201)


@routes.post("/service-accounts", Permission.SERVICE_ACCOUNT_CREATE, status_code=201, response_model=ServiceAccount)
async def create_service_account(ctx: Ctx, body: ServiceAccountCreate) -> Response:
    return await ctx.mutate(lambda tx: identity.create_service_account(tx, ctx.caller, body), 201)


@routes.get("/service-accounts", Permission.SERVICE_ACCOUNT_READ, response_model=ServiceAccountPage)
async def list_service_accounts(
    ctx: Ctx, project_id: str | None = None, cursor: str | None = None, limit: Limit = 100
) -> ServiceAccountPage:
    async with ctx.read() as tx:
        return await identity.list_service_accounts(tx, ctx.caller, project_id, cursor, limit)
