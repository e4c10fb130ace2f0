"""The catalogue: apps and their published versions."""

from gpuaas_contract.base import JsonObject
from gpuaas_contract.catalogue import (
    App,
    AppPage,
    AppVersion,
    AppVersionEnd,
    AppVersionEntry,
    AppVersionPage,
    AppVersionPublish,
    ManifestSchema,
)
from gpuaas_contract.manifest import Manifest
from gpuaas_sdk.pages import Pager
from gpuaas_sdk.resources.base import ResourceRoutes


class Apps(ResourceRoutes):
    def list(self, *, limit: int | None = None) -> Pager[App]:
        return self._list("/apps", AppPage, limit=limit)

    def versions(self, slug: str, *, limit: int | None = None) -> Pager[AppVersionEntry]:
        return self._list(f"/apps/{slug}/versions", AppVersionPage, limit=limit)

    async def manifest_schema(self) -> JsonObject:
        """Fetch the JSON schema of manifests that this platform accepts."""
        return (await self._transport.get("/app-manifest-schema", ManifestSchema)).json_schema


class AppVersions(ResourceRoutes):
    async def publish(self, manifest: Manifest, *, idempotency_key: str | None = None) -> AppVersion:
        body = AppVersionPublish(manifest=manifest)
        return await self._transport.post("/app-versions", AppVersion, body, idempotency_key=idempotency_key)

    async def get(self, slug: str, version: str = "latest") -> AppVersion:
        return await self._transport.get(f"/apps/{slug}/versions/{version}", AppVersion)

    async def get_by_id(self, app_version_id: str) -> AppVersion:
        return await self._transport.get(f"/app-versions/{app_version_id}", AppVersion)

    async def deprecate(
        self, app_version_id: str, *, reason: str = "", idempotency_key: str | None = None
    ) -> AppVersion:
        path = f"/app-versions/{app_version_id}/deprecate"
        return await self._transport.post(
            path, AppVersion, AppVersionEnd(reason=reason), idempotency_key=idempotency_key
        )

    async def retire(self, app_version_id: str, *, reason: str = "", idempotency_key: str | None = None) -> AppVersion:
        path = f"/app-versions/{app_version_id}/retire"
        return await self._transport.post(
            path, AppVersion, AppVersionEnd(reason=reason), idempotency_key=idempotency_key
        )
