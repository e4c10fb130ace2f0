"""Artifacts: made known after a push, verified by signature, promoted, retired, deleted. Only promoted ones travel."""

from gpuaas_contract import ids, oci
from gpuaas_contract.artifacts import Artifact, ArtifactPage, ArtifactRegister, ArtifactStatus
from gpuaas_contract.events import ArtifactEvent
from gpuaas_contract.offers import Offer
from gpuaas_contract.problems import Code
from gpuaas_platform.artifacts.records import ArtifactRecord, ArtifactView
from gpuaas_platform.artifacts.rules import oci as manifests
from gpuaas_platform.artifacts.rules.registry_access import DELETE, PULL
from gpuaas_platform.artifacts.rules.room import over_quota, too_large
from gpuaas_platform.artifacts.rules.signatures import Signature, find_signer, read_key
from gpuaas_platform.artifacts.service.registry import RegistryService
from gpuaas_platform.artifacts.storage import artifacts as store
from gpuaas_platform.artifacts.storage import trusted_keys as key_store
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import Refusal, not_found
from gpuaas_platform.core.pages import cut_page, decode_cursor
from gpuaas_platform.core.records import to_wire
from gpuaas_platform.identity.rules.policy import Caller, Permission
from gpuaas_platform.identity.service.owners import require_owned, require_owner_of_artifacts, seen_owners

NOUN = "artifact"
MOST_SIGNATURES = 20
LARGEST_PAYLOAD = 64 * 1024


async def _changed(
    tx: Transaction, row: ArtifactRecord, event: ArtifactEvent, action: str, **detail: object
) -> Artifact:
    await tx.changed(event, row)
    detail = {"app": row.app_slug, "name": row.name, "digest": row.digest, **detail}
    await tx.audit(f"{NOUN}.{action}", row.id, project_id=row.project_id, detail=detail)
    return to_wire(Artifact, row)


async def _lock(tx: Transaction, caller: Caller, artifact_id: str) -> ArtifactView:
    found = await store.lock(tx, artifact_id)
    row = await require_owned(tx, caller, found, Permission.ARTIFACT_MANAGE, NOUN, artifact_id)
    tx.match(row)
    return row


async def get_artifact(tx: Transaction, caller: Caller, artifact_id: str) -> Artifact:
    found = await store.get(tx, artifact_id)
    row = await require_owned(tx, caller, found, Permission.ARTIFACT_READ, NOUN, artifact_id)
    return to_wire(Artifact, row)


async def list_artifacts(
    tx: Transaction, caller: Caller, app_slug: str | None, project_id: str | None, cursor: str | None, limit: int
) -> ArtifactPage:
    projects, apps = await seen_owners(tx, caller, app_slug, project_id)
    rows = await store.list_matching(tx, projects, apps, decode_cursor(cursor), limit + 1)
    rows, after = cut_page(rows, limit)
    return ArtifactPage(items=[to_wire(Artifact, row) for row in rows], next_cursor=after)


class RegisterArtifact:
    """An outside effect that only looks: the registry says what was pushed. A second time finds the first."""

    def __init__(self, service: RegistryService, caller: Caller, body: ArtifactRegister) -> None:
        self._service = service
        self._caller = caller
        self._body = body
        self._repository = oci.repository_of(body.name, app_slug=body.app_slug, project_id=body.project_id)

    async def intend(self, tx: Transaction) -> Artifact | None:
        body = self._body
        await require_owner_of_artifacts(tx, self._caller, body.app_slug, body.project_id, Permission.ARTIFACT_MANAGE)
        row = await store.find(tx, self._repository, body.digest)
        if row is not None:
            return to_wire(Artifact, row)
        self._registered = await self._service.registered(tx, self._repository)
        return None

    async def act(self) -> None:
        registry, digest = self._service.registry, self._body.digest
        token = await self._service.own_token(self._repository, PULL)
        content = await registry.read_manifest(token, self._repository, digest)
        if content is None:
            raise manifests.invalid(f"the registry has no manifest {digest} in {self._repository}: push it first")
        self._facts = manifests.read_artifact(content)
        size = await registry.read_size(token, self._repository, self._facts.content_digest)
        if size != self._facts.size:
            there = "is not there" if size is None else f"has {size} bytes"
            raise manifests.invalid(f"its manifest announces {self._facts.size} bytes, and the file {there}")
        room = await self._service.room_of(self._repository, self._registered, self._facts.size)
        limits = self._service.limits
        if (refusal := too_large(self._facts.size, limits) or over_quota(room, limits)) is not None:
            # Nobody could delete what was never made known.
            own = await self._service.own_token(self._repository, DELETE)
            await registry.delete_manifest(own, self._repository, digest)
            raise refusal

    async def finish(self, tx: Transaction) -> Artifact:
        body = self._body
        row = await store.insert(tx, ids.new_id(ids.ARTIFACT), self._repository, body, self._facts)
        if row is None:
            found = await store.find(tx, self._repository, body.digest)
            assert found is not None
            return to_wire(Artifact, found)
        return await _changed(tx, row, ArtifactEvent.UPLOADED, "register", size=row.size)

    async def abandon(self, tx: Transaction) -> None:
        """Nothing was done outside."""


class VerifyArtifact:
    """An outside effect that only looks: signatures lie beside the artifact, where cosign puts them."""

    def __init__(self, service: RegistryService, caller: Caller, artifact_id: str) -> None:
        self._service = service
        self._caller = caller
        self._id = artifact_id

    async def intend(self, tx: Transaction) -> Artifact | None:
        row = await _lock(tx, self._caller, self._id)
        if row.status == ArtifactStatus.RETIRED:
            raise _wrong_state(row, "verified")
        if row.status != ArtifactStatus.UPLOADED:
            return to_wire(Artifact, row)
        self._artifact = row
        self._keys = await key_store.list_of_owner(tx, row.app_slug, row.project_id)
        return None

    async def act(self) -> None:
        row = self._artifact
        registry, repository, digest = self._service.registry, row.repository, row.digest
        token = await self._service.own_token(repository, PULL)
        content = await registry.read_manifest(token, repository, digest)
        if content is None or manifests.read_artifact(content).content_digest != row.content_digest:
            raise manifests.invalid(f"the registry has no manifest {digest} in {repository} any more")
        tag = oci.signature_tag(digest)
        signed = await registry.read_manifest(token, repository, tag)
        if signed is None:
            detail = f"the artifact is not verified: it has no signature (looked for the tag {tag} in {repository})"
            raise Refusal(Code.SIGNATURE_MISSING, detail)
        _, layers = manifests.read_layers(signed)
        signatures = []
        for layer in layers[:MOST_SIGNATURES]:
            if layer.media_type == oci.SIGNATURE and oci.SIGNATURE_ANNOTATION in layer.annotations:
                payload = await registry.read_document(token, repository, layer.digest, LARGEST_PAYLOAD)
                signatures.append(Signature(payload or b"", layer.annotations[oci.SIGNATURE_ANNOTATION]))
        keys = [(key.id, read_key(key.public_key_pem).key) for key in self._keys]
        self._signer = find_signer(digest, signatures, keys)

    async def finish(self, tx: Transaction) -> Artifact:
        row = await _lock(tx, self._caller, self._id)
        if row.status != ArtifactStatus.UPLOADED:
            return to_wire(Artifact, row)
        # A key that is not trusted any more must not win by having been slow.
        if await key_store.lock(tx, self._signer) is None:
            raise Refusal(Code.SIGNATURE_INVALID, "the artifact is not verified: its key is not trusted any more")
        verified = await store.update(tx, self._id, status=ArtifactStatus.VERIFIED, trusted_key_id=self._signer)
        return await _changed(tx, verified, ArtifactEvent.VERIFIED, "verify", key=self._signer)

    async def abandon(self, tx: Transaction) -> None:
        """Nothing was done outside."""


def _wrong_state(row: ArtifactRecord, wanted: str) -> Refusal:
    hint = Offer.VERIFY_ARTIFACT.action("verify", "Verify its signature", artifact_id=row.id)
    return Refusal(
        Code.INVALID_STATE,
        f"artifact {row.name} is {row.status} and cannot be {wanted}",
        allowed_actions=[hint] if row.status == ArtifactStatus.UPLOADED else [],
    )


async def promote_artifact(tx: Transaction, caller: Caller, artifact_id: str) -> Artifact:
    row = await _lock(tx, caller, artifact_id)
    if row.status == ArtifactStatus.PROMOTED:
        return to_wire(Artifact, row)
    if row.status != ArtifactStatus.VERIFIED:
        raise _wrong_state(row, "promoted")
    promoted = await store.update(tx, artifact_id, status=ArtifactStatus.PROMOTED)
    return await _changed(tx, promoted, ArtifactEvent.PROMOTED, "promote")


async def retire_artifact(tx: Transaction, caller: Caller, artifact_id: str) -> Artifact:
    """No delivery from now on; what machines have already stays there."""
    row = await _lock(tx, caller, artifact_id)
    if row.status == ArtifactStatus.RETIRED:
        return to_wire(Artifact, row)
    retired = await store.update(tx, artifact_id, status=ArtifactStatus.RETIRED)
    return await _changed(tx, retired, ArtifactEvent.RETIRED, "retire")


class DeleteArtifact:
    """An outside effect. Gone from the registry first: a crash between leaves something that can be deleted again."""

    def __init__(self, service: RegistryService, caller: Caller, artifact_id: str) -> None:
        self._service = service
        self._caller = caller
        self._id = artifact_id

    async def intend(self, tx: Transaction) -> None:
        row = await _lock(tx, self._caller, self._id)
        if row.status == ArtifactStatus.PROMOTED:
            raise Refusal(Code.INVALID_STATE, f"artifact {row.name} is promoted; retire it first")
        # From here on it is nothing that could be promoted meanwhile.
        if row.status != ArtifactStatus.RETIRED:
            await _changed(
                tx, await store.update(tx, self._id, status=ArtifactStatus.RETIRED), ArtifactEvent.RETIRED, "retire"
            )
        self._repository, self._digest = row.repository, row.digest

    async def act(self) -> None:
        token = await self._service.own_token(self._repository, PULL, DELETE)
        registry = self._service.registry
        tag = oci.signature_tag(self._digest)
        if (signed := await registry.read_manifest(token, self._repository, tag)) is not None:
            await registry.delete_manifest(token, self._repository, manifests.digest_of(signed))
        await registry.delete_manifest(token, self._repository, self._digest)

    async def finish(self, tx: Transaction) -> Artifact:
        # The revision that the caller saw was compared in `intend`, which may have moved it.
        if await store.lock(tx, self._id) is None:
            raise not_found(NOUN, self._id)
        return await _changed(tx, await store.update(tx, self._id, delete=True), ArtifactEvent.DELETED, "delete")

    async def abandon(self, tx: Transaction) -> None:
        """It stays retired, and can be deleted again."""


async def require_promoted(tx: Transaction, app_slug: str, project_id: str | None, digest: str) -> ArtifactView:
    """The artifact of the app or the project that may be delivered under this digest."""
    rows = await store.list_of_owner(tx, app_slug, project_id, digest)
    if not rows:
        raise not_found(NOUN, digest)
    if rows[0].status != ArtifactStatus.PROMOTED:
        detail = f"artifact {digest} is {rows[0].status}; only promoted ones are delivered"
        raise Refusal(Code.INVALID_STATE, detail)
    return rows[0]
