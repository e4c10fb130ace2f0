"""Quotas of projects."""

from fastapi import Response

from gpuaas_contract.quotas import Quota, QuotaSet
from gpuaas_platform.api.context import Ctx
from gpuaas_platform.api.routing import Routes
from gpuaas_platform.identity.rules.policy import Permission
from gpuaas_platform.identity.service import quotas

routes = Routes("quotas")


@routes.get("/projects/{project_id}/quota", Permission.QUOTA_READ, response_model=Quota)
async def get_quota(ctx: Ctx, project_id: str) -> Quota:
    """The limits, and what is used of them."""
    async with ctx.read() as tx:
        return await quotas.get_quota(tx, ctx.caller, project_id)


@routes.put("/projects/{project_id}/quota", Permission.QUOTA_SET, response_model=Quota)
async def set_quota(ctx: Ctx, project_id: str, body: QuotaSet) -> Response:
    return await ctx.mutate(lambda tx: quotas.set_quota(tx, ctx.caller, project_id, body))
