"""Service accounts and their keys."""

from fastapi import Response

from gpuaas_contract.identity import (
    ServiceAccount,
    ServiceAccountCreate,
    ServiceAccountKey,
    ServiceAccountKeyAdd,
    ServiceAccountKeyPage,
    ServiceAccountPage,
    ServiceAccountUpdate,
)
from gpuaas_platform.accounts.service import service_accounts
from gpuaas_platform.api.context import Ctx, Limit
from gpuaas_platform.api.routing import Routes
from gpuaas_platform.identity.rules.policy import Permission

routes = Routes("service accounts")
_ONE = "/service-accounts/{service_account_id}"


@routes.post("/service-accounts", Permission.SERVICE_ACCOUNT_CREATE, status_code=201, response_model=ServiceAccount)
async def create_service_account(ctx: Ctx, body: ServiceAccountCreate) -> Response:
    return await ctx.mutate(lambda tx: service_accounts.create_service_account(tx, ctx.caller, body), 201)


@routes.get("/service-accounts", Permission.SERVICE_ACCOUNT_READ, response_model=ServiceAccountPage)
async def list_service_accounts(
    ctx: Ctx,
    project_id: str | None = None,
    tenant_id: str | None = None,
    cursor: str | None = None,
    limit: Limit = 100,
) -> ServiceAccountPage:
    async with ctx.read() as tx:
        return await service_accounts.list_service_accounts(tx, ctx.caller, project_id, tenant_id, cursor, limit)


@routes.get(_ONE, Permission.SERVICE_ACCOUNT_READ, response_model=ServiceAccount)
async def get_service_account(ctx: Ctx, service_account_id: str) -> Response:
    async with ctx.read() as tx:
        return ctx.show(await service_accounts.get_service_account(tx, ctx.caller, service_account_id))


@routes.patch(_ONE, Permission.SERVICE_ACCOUNT_MANAGE, response_model=ServiceAccount)
async def update_service_account(ctx: Ctx, service_account_id: str, body: ServiceAccountUpdate) -> Response:
    """Disable or enable. Its tokens end at once."""
    return await ctx.mutate(
        lambda tx: service_accounts.update_service_account(tx, ctx.caller, service_account_id, body)
    )


@routes.delete(_ONE, Permission.SERVICE_ACCOUNT_MANAGE, response_model=ServiceAccount)
async def delete_service_account(ctx: Ctx, service_account_id: str) -> Response:
    return await ctx.mutate(lambda tx: service_accounts.delete_service_account(tx, ctx.caller, service_account_id))


@routes.get(f"{_ONE}/keys", Permission.SERVICE_ACCOUNT_READ, response_model=ServiceAccountKeyPage)
async def list_service_account_keys(ctx: Ctx, service_account_id: str) -> ServiceAccountKeyPage:
    """Public keys and secrets. A secret itself is never shown again."""
    async with ctx.read() as tx:
        return await service_accounts.list_keys(tx, ctx.caller, service_account_id)


@routes.post(f"{_ONE}/keys", Permission.SERVICE_ACCOUNT_MANAGE, status_code=201, response_model=ServiceAccountKey)
async def add_service_account_key(ctx: Ctx, service_account_id: str, body: ServiceAccountKeyAdd) -> Response:
    """Two of a kind are valid at most: add the next one, bring it out, revoke the last one."""
    return await ctx.mutate(lambda tx: service_accounts.add_key(tx, ctx.caller, service_account_id, body), 201)


@routes.post(f"{_ONE}/secrets", Permission.SERVICE_ACCOUNT_MANAGE, status_code=201, response_model=ServiceAccountKey)
async def add_service_account_secret(ctx: Ctx, service_account_id: str) -> Response:
    """The answer shows the secret, this once."""
    return await ctx.mutate(lambda tx: service_accounts.add_secret(tx, ctx.caller, service_account_id), 201)


@routes.delete(f"{_ONE}/keys/{{key_id}}", Permission.SERVICE_ACCOUNT_MANAGE, response_model=ServiceAccountKey)
async def revoke_service_account_key(ctx: Ctx, service_account_id: str, key_id: str) -> Response:
    return await ctx.mutate(lambda tx: service_accounts.revoke_key(tx, ctx.caller, service_account_id, key_id))
