"""The catalogue and its artifacts."""

from typing import Annotated

from fastapi import Path, Request, Response

from gpuaas_contract.artifacts import Artifact, ArtifactPage
from gpuaas_contract.base import Digest, Name
from gpuaas_contract.catalogue import AppPage, AppVersion, AppVersionPublish
from gpuaas_platform.api.context import Ctx, Limit
from gpuaas_platform.api.routing import Routes
from gpuaas_platform.domain.policy import Permission, Scope
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


@routes.put("/apps/{slug}/artifacts/{digest}", Permission.APP_PUBLISH, response_model=Artifact)
async def upload_artifact(
    ctx: Ctx, request: Request, slug: Annotated[Name, Path()], digest: Annotated[Digest, Path()]
) -> Artifact:
    """The body is the file; it is refused unless it has this digest. Naturally idempotent."""
    ctx.caller.require(Permission.APP_PUBLISH, Scope(), "app", slug)
    async with ctx.read() as tx:
        present = await catalogue.find_artifact(tx, slug, digest)
    if present is not None:
        return present
    size = await ctx.platform.blobs.write(digest, request.stream())
    media_type = request.headers.get("content-type", "application/octet-stream")[:200]
    async with ctx.write() as tx:
        return await catalogue.register_artifact(tx, slug, digest, size, media_type)


@routes.get("/apps/{slug}/artifacts", Permission.APP_PUBLISH, response_model=ArtifactPage)
async def list_artifacts(ctx: Ctx, slug: str, cursor: str | None = None, limit: Limit = 100) -> ArtifactPage:
    async with ctx.read() as tx:
        return await catalogue.list_artifacts(tx, ctx.caller, slug, cursor, limit)
