"""The catalogue: apps and their published versions."""

from gpuaas_contract.catalogue import App, AppPage, AppVersion, AppVersionPublish
from gpuaas_contract.manifest import Manifest
from gpuaas_sdk.pages import Pager
from gpuaas_sdk.resources.base import ResourceRoutes


class Apps(ResourceRoutes):
    def list(self, *, limit: int | None = None) -> Pager[App]:
        return self._list("/apps", AppPage, limit=limit)


class AppVersions(ResourceRoutes):
    async def publish(self, manifest: Manifest, *, idempotency_key: str | None = None) -> AppVersion:
        body = AppVersionPublish(manifest=manifest)
        return await self._transport.post("/app-versions", AppVersion, body, idempotency_key=idempotency_key)

    async def get(self, slug: str, version: str = "latest") -> AppVersion:
        return await self._transport.get(f"/apps/{slug}/versions/{version}", AppVersion)
