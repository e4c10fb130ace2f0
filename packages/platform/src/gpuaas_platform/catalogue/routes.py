"""The catalogue: apps and their published versions."""

from fastapi import Response

from gpuaas_contract.catalogue import (
    AppPage,
    AppVersion,
    AppVersionEnd,
    AppVersionPage,
    AppVersionPublish,
    AppVersionStatus,
    Entitlement,
    EntitlementCreate,
    EntitlementPage,
    ManifestSchema,
)
from gpuaas_contract.manifest import manifest_schema
from gpuaas_platform.api.context import Ctx, Limit
from gpuaas_platform.api.routing import Routes
from gpuaas_platform.catalogue.service import entitlements
from gpuaas_platform.catalogue.service import versions as catalogue
from gpuaas_platform.identity.rules.policy import Permission

routes = Routes("catalogue")


@routes.post("/app-versions", Permission.APP_PUBLISH, status_code=201, response_model=AppVersion)
async def publish_app_version(ctx: Ctx, body: AppVersionPublish) -> Response:
    return await ctx.mutate(lambda tx: catalogue.publish_version(tx, ctx.caller, body), 201)


@routes.get("/app-versions/{app_version_id}", Permission.AUTHENTICATED, response_model=AppVersion)
async def get_app_version_by_id(ctx: Ctx, app_version_id: str) -> Response:
    async with ctx.read() as tx:
        return ctx.show(await catalogue.get_version_by_id(tx, ctx.caller, app_version_id))


@routes.post("/app-versions/{app_version_id}/deprecate", Permission.APP_PUBLISH, response_model=AppVersion)
async def deprecate_app_version(ctx: Ctx, app_version_id: str, body: AppVersionEnd) -> Response:
    """It runs on, and is deployed only where it is asked for by its number."""
    status = AppVersionStatus.DEPRECATED
    return await ctx.mutate(lambda tx: catalogue.end_version(tx, ctx.caller, app_version_id, status, body))


@routes.post("/app-versions/{app_version_id}/retire", Permission.APP_PUBLISH, response_model=AppVersion)
async def retire_app_version(ctx: Ctx, app_version_id: str, body: AppVersionEnd) -> Response:
    """It runs on where it runs; nothing is deployed with it or upgraded to it."""
    status = AppVersionStatus.RETIRED
    return await ctx.mutate(lambda tx: catalogue.end_version(tx, ctx.caller, app_version_id, status, body))


@routes.get("/app-manifest-schema", Permission.AUTHENTICATED, response_model=ManifestSchema)
async def get_manifest_schema(ctx: Ctx) -> ManifestSchema:
    """The shape of a manifest as JSON Schema. Publishing also checks what fields say about each other."""
    return ManifestSchema(json_schema=manifest_schema())


@routes.get("/apps", Permission.AUTHENTICATED, response_model=AppPage)
async def list_apps(ctx: Ctx, cursor: str | None = None, limit: Limit = 100) -> AppPage:
    """Those that the caller's tenants are entitled to, and the caller's own."""
    async with ctx.read() as tx:
        return await catalogue.list_apps(tx, ctx.caller, cursor, limit)


@routes.get("/apps/{slug}/versions", Permission.AUTHENTICATED, response_model=AppVersionPage)
async def list_app_versions(ctx: Ctx, slug: str, cursor: str | None = None, limit: Limit = 100) -> AppVersionPage:
    async with ctx.read() as tx:
        return await catalogue.list_versions(tx, ctx.caller, slug, cursor, limit)


@routes.get("/apps/{slug}/versions/{version}", Permission.AUTHENTICATED, response_model=AppVersion)
async def get_app_version(ctx: Ctx, slug: str, version: str) -> Response:
    """`latest` is the published version that came last: what is deployed where none is named."""
    async with ctx.read() as tx:
        return ctx.show(await catalogue.get_version(tx, ctx.caller, slug, version))


@routes.post("/entitlements", Permission.ENTITLEMENT_MANAGE, status_code=201, response_model=Entitlement)
async def create_entitlement(ctx: Ctx, body: EntitlementCreate) -> Response:
    return await ctx.mutate(lambda tx: entitlements.create_entitlement(tx, ctx.caller, body), 201)


@routes.get("/entitlements", Permission.AUTHENTICATED, response_model=EntitlementPage)
async def list_entitlements(
    ctx: Ctx,
    tenant_id: str | None = None,
    app_slug: str | None = None,
    cursor: str | None = None,
    limit: Limit = 100,
) -> EntitlementPage:
    """Of the caller's tenants, and of the apps that it publishes."""
    async with ctx.read() as tx:
        return await entitlements.list_entitlements(tx, ctx.caller, tenant_id, app_slug, cursor, limit)


@routes.get("/entitlements/{entitlement_id}", Permission.AUTHENTICATED, response_model=Entitlement)
async def get_entitlement(ctx: Ctx, entitlement_id: str) -> Response:
    async with ctx.read() as tx:
        return ctx.show(await entitlements.get_entitlement(tx, ctx.caller, entitlement_id))


@routes.delete("/entitlements/{entitlement_id}", Permission.ENTITLEMENT_MANAGE, response_model=Entitlement)
async def delete_entitlement(ctx: Ctx, entitlement_id: str) -> Response:
    """At once: what runs stays and can be taken apart; nothing is deployed, upgraded, added or pulled any more."""
    return await ctx.mutate(lambda tx: entitlements.delete_entitlement(tx, ctx.caller, entitlement_id))
