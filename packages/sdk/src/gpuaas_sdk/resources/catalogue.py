"""The catalogue: apps, their published versions and their artifacts."""

import hashlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from gpuaas_contract.artifacts import Artifact, ArtifactPage
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
from gpuaas_sdk.transport import parse

CHUNK = 1 << 20
UPLOAD_TIMEOUT = 600.0


class Apps(ResourceRoutes):
    def list(self, *, limit: int | None = None) -> Pager[App]:
        return self._list("/apps", AppPage, limit=limit)

    def versions(self, slug: str, *, limit: int | None = None) -> Pager[AppVersionEntry]:
        return self._list(f"/apps/{slug}/versions", AppVersionPage, limit=limit)

    async def manifest_schema(self) -> JsonObject:
        """The shape of a manifest, as this platform takes it."""
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


class Artifacts(ResourceRoutes):
    def list(self, slug: str, *, limit: int | None = None) -> Pager[Artifact]:
        return self._list(f"/apps/{slug}/artifacts", ArtifactPage, limit=limit)

    async def upload(
        self,
        slug: str,
        path: Path,
        media_type: str,
        *,
        on_progress: Callable[[int], None] = lambda sent: None,
    ) -> Artifact:
        """Send a file under the name of its content. Sending it twice is harmless, so no key is needed."""
        digest = digest_of_file(path)
        size = path.stat().st_size  # noqa: ASYNC240 - local disk

        async def read() -> AsyncIterator[bytes]:
            sent = 0
            on_progress(0)
            with path.open("rb") as file:
                while chunk := file.read(CHUNK):
                    yield chunk
                    sent += len(chunk)
                    on_progress(sent)

        headers = {"Content-Type": media_type, "Content-Length": str(size)}
        response = await self._transport.send(
            "PUT", f"/apps/{slug}/artifacts/{digest}", headers=headers, content=read, timeout=UPLOAD_TIMEOUT
        )
        return parse(Artifact, response)


def digest_of_file(path: Path) -> str:
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
