"""The catalogue: apps and their published versions."""

from fastapi import Response

from gpuaas_contract.catalogue import AppPage, AppVersion, AppVersionPublish
from gpuaas_platform.api.context import Ctx, Limit
from gpuaas_platform.api.routing import Routes
from gpuaas_platform.domain.policy import Permission
from gpuaas_platform.services import catalogue

routes = Routes("catalogue")


@routes.post("/app-versions", Permission.APP_PUBLISH, status_code=201, response_model=AppVersion)
async def publish_app_version(ctx: Ctx, body: AppVersionPublish) -> Response:
    return await ctx.mutate(lambda tx: catalogue.publish_version(tx, ctx.caller, body), 201)


@routes.get("/apps", Permission.AUTHENTICATED, response_model=AppPage)
async def list_apps(ctx: Ctx, cursor: str | None = None, limit: Limit = 100) -> AppPage:
    async with ctx.read() as tx:
        return await catalogue.list_apps(tx, cursor, limit)


@routes.get("/apps/{slug}/versions/{version}", Permission.AUTHENTICATED, response_model=AppVersion)
async def get_app_version(ctx: Ctx, slug: str, version: str) -> Response:
    """`latest` is the version that was published last."""
    async with ctx.read() as tx:
        return ctx.show(AppVersion.model_validate(await catalogue.get_version(tx, slug, version)))
