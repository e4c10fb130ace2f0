"""The catalogue: publishing app versions and their artifacts."""

import jsonschema

from gpuaas_contract import ids
from gpuaas_contract.artifacts import Artifact, ArtifactPage
from gpuaas_contract.catalogue import App, AppPage, AppVersion, AppVersionPublish
from gpuaas_contract.manifest import Manifest
from gpuaas_contract.problems import Code, FieldError
from gpuaas_platform.domain.errors import Refusal, not_found
from gpuaas_platform.domain.policy import Caller, Permission, Scope
from gpuaas_platform.services.pages import cut_page, decode_cursor
from gpuaas_platform.storage import catalogue as store
from gpuaas_platform.storage.database import Row, Transaction


def manifest_of(row: Row) -> Manifest:
    return Manifest.model_validate(row["manifest"])


async def publish_version(tx: Transaction, caller: Caller, body: AppVersionPublish) -> AppVersion:
    manifest = body.manifest
    caller.require(Permission.APP_PUBLISH, Scope(), "app", manifest.slug)
    _check_schemas(manifest)
    for number, slot in enumerate(manifest.artifacts):
        if slot.digest is None or await store.get_artifact(tx, manifest.slug, slot.digest) is None:
            detail = f"artifact {slot.name!r} was not uploaded: PUT it, then publish with its digest"
            pointer = f"/manifest/artifacts/{number}/digest"
            raise Refusal(Code.MANIFEST_INVALID, detail, errors=[FieldError(pointer=pointer, detail=detail)])
    document = manifest.model_dump(mode="json", by_alias=True)
    row = await store.insert_version(tx, ids.new_id(ids.APP_VERSION), manifest.slug, manifest.version, document)
    if row is None:
        present = await store.get_version(tx, manifest.slug, manifest.version)
        # As it reads today: a manifest that was kept before a field was added is still the same one.
        if present is not None and manifest_of(present) == manifest:
            return AppVersion.model_validate(present)
        raise Refusal(
            Code.VERSION_EXISTS,
            f"{manifest.slug} {manifest.version} was published with other content; raise the version",
        )
    await tx.changed("app_version", row, "published")
    await tx.audit("app_version.publish", row["id"])
    return AppVersion.model_validate(row)


def _check_schemas(manifest: Manifest) -> None:
    schemas = {"/manifest/inputs": manifest.inputs}
    for number, operation in enumerate(manifest.operations):
        schemas[f"/manifest/operations/{number}/input_schema"] = operation.input_schema
    for pointer, schema in schemas.items():
        try:
            jsonschema.Draft202012Validator.check_schema(schema)
        except jsonschema.SchemaError as error:
            raise Refusal(
                Code.MANIFEST_INVALID,
                f"not a JSON Schema: {error.message}",
                errors=[FieldError(pointer=pointer, detail=error.message)],
            ) from error


async def get_version(tx: Transaction, app_slug: str, version: str | None) -> Row:
    """The newest version where none is named."""
    if version in {None, "latest"}:
        row = await store.latest_version(tx, app_slug)
    else:
        row = await store.get_version(tx, app_slug, str(version))
    if row is None:
        raise not_found("app version", f"{app_slug} {version or 'latest'}")
    return row


async def list_apps(tx: Transaction, cursor: str | None, limit: int) -> AppPage:
    rows, after = cut_page(await store.list_apps(tx, decode_cursor(cursor), limit + 1), limit)
    apps = [
        App(
            slug=row["app_slug"],
            title=row["manifest"]["title"],
            description=row["manifest"]["description"],
            latest_version=row["version"],
            published_at=row["created_at"],
        )
        for row in rows
    ]
    return AppPage(items=apps, next_cursor=after)


async def find_artifact(tx: Transaction, app_slug: str, digest: str) -> Artifact | None:
    row = await store.get_artifact(tx, app_slug, digest)
    return Artifact.model_validate(row) if row else None


async def register_artifact(tx: Transaction, app_slug: str, digest: str, size: int, media_type: str) -> Artifact:
    """The bytes are on disk already; a second upload of the same ones finds the first."""
    row = await store.insert_artifact(tx, ids.new_id(ids.ARTIFACT), app_slug, digest, size, media_type)
    if row is None:
        row = await store.get_artifact(tx, app_slug, digest)
        return Artifact.model_validate(row)
    await tx.changed("artifact", row, "uploaded")
    await tx.audit("artifact.upload", row["id"], detail={"app": app_slug, "digest": digest})
    return Artifact.model_validate(row)


async def list_artifacts(
    tx: Transaction, caller: Caller, app_slug: str, cursor: str | None, limit: int
) -> ArtifactPage:
    caller.require(Permission.APP_PUBLISH, Scope(), "app", app_slug)
    rows, after = cut_page(await store.list_artifacts(tx, app_slug, decode_cursor(cursor), limit + 1), limit)
    return ArtifactPage(items=[Artifact.model_validate(row) for row in rows], next_cursor=after)
