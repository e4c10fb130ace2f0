"""Usage that apps report."""

from typing import Annotated

from fastapi import Query, Response
from pydantic import AwareDatetime

from gpuaas_contract.app_usage import AppUsageAnswer, AppUsageBatch, AppUsagePage
from gpuaas_platform.api.context import Ctx, Limit
from gpuaas_platform.api.routing import Routes
from gpuaas_platform.identity.rules.policy import Permission
from gpuaas_platform.instances.records import UsageFilter
from gpuaas_platform.instances.service import app_usage

routes = Routes("app usage")
Text = Annotated[str, Query(max_length=200, pattern=r"^[^\x00]*$")]


@routes.post("/app-instances/{instance_id}/usage", Permission.OPERATION_WORK, response_model=AppUsageAnswer)
async def report_app_usage(ctx: Ctx, instance_id: str, body: AppUsageBatch) -> Response:
    """Report usage of the instance, for its app's service account. Each record id counts once and has its result."""
    return await ctx.mutate(lambda tx: app_usage.report_usage(tx, ctx.caller, instance_id, body))


@routes.get("/app-usage", Permission.USAGE_READ, response_model=AppUsagePage)
async def list_app_usage(
    ctx: Ctx,
    project_id: str | None = None,
    instance_id: str | None = None,
    app_slug: Text | None = None,
    subject: Text | None = None,
    work_id: Text | None = None,
    unit: Text | None = None,
    since: AwareDatetime | None = None,
    until: AwareDatetime | None = None,
    cursor: str | None = None,
    limit: Limit = 100,
) -> AppUsagePage:
    """With `since` and `until`: records whose interval is at least partly between them."""
    only = UsageFilter(instance_id, app_slug, subject, work_id, unit, since, until)
    async with ctx.read() as tx:
        return await app_usage.list_usage(tx, ctx.caller, project_id, only, cursor, limit)
