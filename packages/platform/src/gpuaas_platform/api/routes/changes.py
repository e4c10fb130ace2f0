"""The change feed."""

from typing import Annotated

from fastapi import Query

from gpuaas_contract.changes import ChangePage
from gpuaas_platform.api.context import Ctx
from gpuaas_platform.api.routing import Routes
from gpuaas_platform.domain.policy import Permission
from gpuaas_platform.services.changes import MAX_WAIT_SECONDS

routes = Routes("changes")


@routes.get("/changes", Permission.AUTHENTICATED, response_model=ChangePage)
async def read_changes(
    ctx: Ctx,
    since: str | None = None,
    wait: Annotated[float, Query(ge=0, le=MAX_WAIT_SECONDS)] = 0,
    project_id: str | None = None,
    instance_id: str | None = None,
) -> ChangePage:
    """Without `since`, a cursor for the present. With `wait`, answer when something happened."""
    return await ctx.platform.feed.read(ctx.caller, ctx.correlation_id, since, wait, project_id, instance_id)
