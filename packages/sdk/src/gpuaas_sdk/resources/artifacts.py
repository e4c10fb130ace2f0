"""Artifacts in the registry, and the keys that vouch for them."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpuaas_contract import oci
from gpuaas_contract.artifacts import (
    Artifact,
    ArtifactPage,
    ArtifactRegister,
    Registry,
    RegistryToken,
    RegistryUpload,
    TrustedKey,
    TrustedKeyCreate,
    TrustedKeyPage,
)
from gpuaas_contract.trees import check_file
from gpuaas_sdk.pages import Pager
from gpuaas_sdk.resources.base import ResourceRoutes

if TYPE_CHECKING:
    from gpuaas_sdk.registry import RegistryClient


class Registries(ResourceRoutes):
    async def get(self) -> Registry:
        return await self._transport.get("/registry", Registry)

    async def token(self, repository: str, *, push: bool = False) -> RegistryToken:
        """Fetch a token for a repository; it omits actions that the caller may not do."""
        scope = f"repository:{repository}:{'pull,push' if push else 'pull'}"
        return await self._transport.get("/registry/token", RegistryToken, {"scope": scope, "service": oci.SERVICE})

    async def size(self, repository: str, digest: str) -> int:
        async with await self._client_of(repository) as registry:
            return await registry.blob_size(digest)

    async def read(self, repository: str, digest: str, size: int) -> AsyncGenerator[bytes]:
        """One file of a repository, by size and digest of its content, in pieces. The last piece comes only where the
        whole has them."""
        async with (
            await self._client_of(repository) as registry,
            aclosing(registry.read_blob(digest, size)) as pieces,
        ):
            async for piece in pieces:
                yield piece

    async def _client_of(self, repository: str) -> "RegistryClient":
        from gpuaas_sdk.registry import RegistryClient

        async def fetch() -> str:
            return (await self.token(repository)).token

        return RegistryClient((await self.get()).url, repository, fetch, ca_file=self._transport.ca_file)

    async def upload(self, upload_id: str, repository: str) -> RegistryUpload:
        """Return where an interrupted upload continues, if the platform knows."""
        return await self._transport.get(f"/registry/uploads/{upload_id}", RegistryUpload, {"repository": repository})


class Artifacts(ResourceRoutes):
    async def register(
        self,
        name: str,
        digest: str,
        *,
        app_slug: str | None = None,
        project_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> Artifact:
        """Register a pushed artifact by the digest of its manifest. A repetition returns the first registration."""
        owner = _owner(app_slug, project_id)
        body = ArtifactRegister(name=name, digest=digest, **owner)
        return await self._transport.post("/artifacts", Artifact, body, idempotency_key=idempotency_key)

    def list(
        self, *, app_slug: str | None = None, project_id: str | None = None, limit: int | None = None
    ) -> Pager[Artifact]:
        return self._list("/artifacts", ArtifactPage, {"app_slug": app_slug, "project_id": project_id}, limit=limit)

    async def get(self, artifact_id: str) -> Artifact:
        return await self._transport.get(f"/artifacts/{artifact_id}", Artifact)

    async def verify(self, artifact_id: str) -> Artifact:
        """Check its signature with the trusted keys of its owner."""
        return await self._transport.post(f"/artifacts/{artifact_id}/verify", Artifact)

    async def promote(self, artifact_id: str, *, revision: int | None = None) -> Artifact:
        return await self._transport.post(f"/artifacts/{artifact_id}/promote", Artifact, revision=revision)

    async def retire(self, artifact_id: str, *, revision: int | None = None) -> Artifact:
        return await self._transport.post(f"/artifacts/{artifact_id}/retire", Artifact, revision=revision)

    async def delete(self, artifact_id: str, *, revision: int | None = None) -> Artifact:
        return await self._transport.delete(f"/artifacts/{artifact_id}", Artifact, revision=revision)

    async def push(
        self,
        name: str,
        path: Path,
        *,
        app_slug: str | None = None,
        project_id: str | None = None,
        media_type: str = oci.FILE,
        artifact_type: str = oci.FILE_ARTIFACT,
        file_name: str | None = None,
        sign_key: str | None = None,
        resume_dir: Path | None = None,
        on_progress: Callable[[int], None] = lambda sent: None,
    ) -> Artifact:
        """Send a file to the registry, sign it where a key is given (PEM), and make it known. To do it again, also
        after an interruption, sends only what is missing. UnsafeTreeError for a tar with something that leads out of it
        or that gives rights away, unless its media type declares that."""
        from gpuaas_sdk.registry import RegistryClient, UploadNotes, digest_of_file

        owner = _owner(app_slug, project_id)
        repository = oci.repository_of(name, **owner)
        check_file(path, media_type)
        url = (await Registries(self._transport).get()).url
        async with RegistryClient(
            url,
            repository,
            self._token_of(repository),
            find_upload=self._upload_of(repository),
            notes=UploadNotes(resume_dir),
            ca_file=self._transport.ca_file,
        ) as registry:
            content_digest = digest_of_file(path)
            await registry.push_file(path, content_digest, on_progress)
            await registry.push_bytes(oci.EMPTY_CONTENT)
            size = path.stat().st_size  # noqa: ASYNC240 - local disk
            layer = {"mediaType": media_type, "digest": content_digest, "size": size}
            layer["annotations"] = {oci.TITLE: file_name or path.name}
            manifest = _manifest([layer], oci.EMPTY, artifactType=artifact_type)
            digest = await registry.push_manifest(manifest)
            if sign_key is not None:
                await _sign(registry, repository, digest, sign_key)
        return await self.register(name, digest, app_slug=app_slug, project_id=project_id)

    async def check_push(self, name: str, *, app_slug: str | None = None, project_id: str | None = None) -> None:
        """Raise the error that a push would raise, for programs that have to make the file first. Sends the empty
        configuration that every artifact has, and nothing else."""
        from gpuaas_sdk.registry import RegistryClient

        repository = oci.repository_of(name, **_owner(app_slug, project_id))
        url = (await Registries(self._transport).get()).url
        token, ca_file = self._token_of(repository), self._transport.ca_file
        async with RegistryClient(url, repository, token, ca_file=ca_file) as registry:
            await registry.push_bytes(oci.EMPTY_CONTENT)

    async def sign(self, artifact_id: str, private_key_pem: str) -> None:
        """Put a signature beside an artifact, as cosign does."""
        from gpuaas_sdk.registry import RegistryClient

        found = await self.get(artifact_id)
        url = (await Registries(self._transport).get()).url
        token, ca_file = self._token_of(found.repository), self._transport.ca_file
        async with RegistryClient(url, found.repository, token, ca_file=ca_file) as registry:
            await _sign(registry, found.repository, found.digest, private_key_pem)

    def _upload_of(self, repository: str) -> Callable[[str], Awaitable[tuple[str, int] | None]]:
        async def find(upload_id: str) -> tuple[str, int] | None:
            found = await Registries(self._transport).upload(upload_id, repository)
            return None if found.location is None else (found.location, found.offset)

        return find

    def _token_of(self, repository: str) -> Callable[[], Awaitable[str]]:
        async def fetch() -> str:
            return (await Registries(self._transport).token(repository, push=True)).token

        return fetch


class TrustedKeys(ResourceRoutes):
    async def add(
        self,
        name: str,
        public_key_pem: str,
        *,
        app_slug: str | None = None,
        project_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> TrustedKey:
        """ECDSA P-256 or ed25519, in PEM form."""
        body = TrustedKeyCreate(name=name, public_key_pem=public_key_pem, **_owner(app_slug, project_id))
        return await self._transport.post("/trusted-keys", TrustedKey, body, idempotency_key=idempotency_key)

    def list(
        self, *, app_slug: str | None = None, project_id: str | None = None, limit: int | None = None
    ) -> Pager[TrustedKey]:
        query = {"app_slug": app_slug, "project_id": project_id}
        return self._list("/trusted-keys", TrustedKeyPage, query, limit=limit)

    async def get(self, trusted_key_id: str) -> TrustedKey:
        return await self._transport.get(f"/trusted-keys/{trusted_key_id}", TrustedKey)

    async def delete(self, trusted_key_id: str, *, revision: int | None = None) -> TrustedKey:
        """Delete the key; artifacts that were verified with it stay verified."""
        return await self._transport.delete(f"/trusted-keys/{trusted_key_id}", TrustedKey, revision=revision)


def _owner(app_slug: str | None, project_id: str | None) -> dict[str, str]:
    """ValueError where it is not exactly one."""
    given = {"app_slug": app_slug, "project_id": project_id}
    owner = {name: value for name, value in given.items() if value is not None}
    if len(owner) != 1:
        raise ValueError("name an app or a project, and only one of them")
    return owner


def _manifest(layers: list[dict[str, Any]], config: str, **fields: Any) -> bytes:
    document = {
        "schemaVersion": 2,
        "mediaType": oci.MANIFEST,
        **fields,
        "config": {"mediaType": config, "digest": oci.EMPTY_DIGEST, "size": len(oci.EMPTY_CONTENT)},
        "layers": layers,
    }
    return json.dumps(document, separators=(",", ":"), sort_keys=True).encode()


async def _sign(registry: "RegistryClient", repository: str, digest: str, private_key_pem: str) -> None:
    """Beside the signatures that are there already, as cosign does."""
    from gpuaas_sdk import signing

    payload = signing.payload_of(repository, digest)
    layer = {
        "mediaType": oci.SIGNATURE,
        "digest": await registry.push_bytes(payload),
        "size": len(payload),
        "annotations": {oci.SIGNATURE_ANNOTATION: signing.sign(payload, private_key_pem)},
    }
    tag = oci.signature_tag(digest)
    present = await registry.read_manifest(tag)
    layers = [] if present is None else [*json.loads(present)["layers"]]
    await registry.push_bytes(oci.EMPTY_CONTENT)
    await registry.push_manifest(_manifest([*layers, layer], oci.SIGNATURE_CONFIG), tag)
