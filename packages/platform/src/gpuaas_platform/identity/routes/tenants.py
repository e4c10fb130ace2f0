"""Who the caller is; tenants and projects."""

from fastapi import Response

from gpuaas_contract.identity import (
    Principal,
    PrincipalKind,
    Project,
    ProjectCreate,
    ProjectPage,
    ProjectUpdate,
    Tenant,
    TenantCreate,
    TenantPage,
    TenantUpdate,
)
from gpuaas_platform.accounts.service import users
from gpuaas_platform.accounts.service.service_accounts import find_own
from gpuaas_platform.api.context import Ctx, Limit
from gpuaas_platform.api.routing import Routes
from gpuaas_platform.identity.rules.policy import Permission
from gpuaas_platform.identity.service import tenants as identity

routes = Routes("identity")
MOST_MEMBERSHIPS = 500


@routes.get("/principal", Permission.AUTHENTICATED, response_model=Principal)
async def get_principal(ctx: Ctx) -> Principal:
    caller = ctx.caller
    own: dict[str, object] = {}
    async with ctx.read() as tx:
        if caller.kind == PrincipalKind.USER:
            page = await users.list_memberships(tx, caller, caller.id, None, None, None, MOST_MEMBERSHIPS)
            own["memberships"] = page.items
        elif (account := await find_own(tx, caller)) is not None:
            own = {"tenant_id": account.tenant_id, "project_id": account.project_id, "role": account.role}
    return Principal.model_validate(
        {
            "kind": caller.kind,
            "id": caller.id,
            "name": caller.name,
            "app_slug": caller.app_slug,
            "token_expires_at": ctx.authenticated.expires_at,
            **own,
        }
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


@routes.patch("/tenants/{tenant_id}", Permission.TENANT_UPDATE, response_model=Tenant)
async def update_tenant(ctx: Ctx, tenant_id: str, body: TenantUpdate) -> Response:
    return await ctx.mutate(lambda tx: identity.update_tenant(tx, ctx.caller, tenant_id, body))


@routes.delete("/tenants/{tenant_id}", Permission.TENANT_DELETE, response_model=Tenant)
async def delete_tenant(ctx: Ctx, tenant_id: str) -> Response:
    """Only while no project and no service account is in it. Answers with what it was."""
    return await ctx.mutate(lambda tx: identity.delete_tenant(tx, ctx.caller, tenant_id))


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


@routes.patch("/projects/{project_id}", Permission.PROJECT_UPDATE, response_model=Project)
async def update_project(ctx: Ctx, project_id: str, body: ProjectUpdate) -> Response:
    return await ctx.mutate(lambda tx: identity.update_project(tx, ctx.caller, project_id, body))


@routes.delete("/projects/{project_id}", Permission.PROJECT_DELETE, response_model=Project)
async def delete_project(ctx: Ctx, project_id: str) -> Response:
    """Only when its instances have ended, its machines are released and its service accounts deleted."""
    return await ctx.mutate(lambda tx: identity.delete_project(tx, ctx.caller, project_id))
