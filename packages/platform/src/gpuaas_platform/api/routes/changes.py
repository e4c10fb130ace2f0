"""The change feed, and the health of the process."""

from typing import Annotated

from fastapi import Query, Request, Response
from fastapi.responses import JSONResponse

from gpuaas_contract.changes import ChangePage
from gpuaas_contract.problems import Code
from gpuaas_platform.api.context import Ctx, platform_of
from gpuaas_platform.api.routing import Routes
from gpuaas_platform.domain.errors import Refusal
from gpuaas_platform.domain.policy import Permission
from gpuaas_platform.services.changes import MAX_WAIT_SECONDS

routes = Routes("changes")
health = Routes("health", prefix="")


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


@health.get("/healthz", Permission.ANONYMOUS)
async def is_alive() -> Response:
    return JSONResponse({"status": "alive"})


@health.get("/readyz", Permission.ANONYMOUS)
async def is_ready(request: Request) -> Response:
    """Really asks PostgreSQL and OpenBao."""
    platform = platform_of(request)
    async with platform.database.system_transaction() as tx:
        await tx.one("SELECT 1")
    if not await platform.openbao.is_healthy():
        raise Refusal(Code.UNAVAILABLE, "the secrets server does not answer", retry_after=2)
    return JSONResponse({"status": "ready"})
