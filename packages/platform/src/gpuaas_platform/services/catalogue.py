"""The catalogue: publishing app versions."""

import jsonschema

from gpuaas_contract import ids
from gpuaas_contract.artifacts import ArtifactStatus
from gpuaas_contract.catalogue import App, AppPage, AppVersion, AppVersionPublish
from gpuaas_contract.manifest import ArtifactSlot, Manifest
from gpuaas_contract.problems import Code, FieldError
from gpuaas_platform.domain.errors import Refusal, not_found
from gpuaas_platform.domain.policy import Caller, Permission, Scope
from gpuaas_platform.services.pages import cut_page, decode_cursor
from gpuaas_platform.storage import artifacts as artifact_store
from gpuaas_platform.storage import catalogue as store
from gpuaas_platform.storage.database import Row, Transaction


def manifest_of(row: Row) -> Manifest:
    return Manifest.model_validate(row["manifest"])


async def publish_version(tx: Transaction, caller: Caller, body: AppVersionPublish) -> AppVersion:
    manifest = body.manifest
    caller.require(Permission.APP_PUBLISH, Scope(), "app", manifest.slug)
    _check_schemas(manifest)
    for number, slot in enumerate(manifest.artifacts):
        await _check_artifact(tx, manifest.slug, slot, f"/manifest/artifacts/{number}")
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


async def _check_artifact(tx: Transaction, app_slug: str, slot: ArtifactSlot, pointer: str) -> None:
    """A version names what can be delivered, and of the kind that it says."""
    rows = [] if slot.digest is None else await artifact_store.list_of_owner(tx, app_slug, None, slot.digest)
    if not rows or rows[0]["status"] != ArtifactStatus.PROMOTED:
        state = f"it is {rows[0]['status']}" if rows else "there is none with that digest"
        detail = f"artifact {slot.name!r} is not promoted ({state}): push, verify and promote it, then publish"
        pointer += "/digest"
    elif rows[0]["media_type"] != slot.media_type:
        detail = f"artifact {slot.name!r} is {rows[0]['media_type']}, not {slot.media_type}"
        pointer += "/media_type"
    else:
        return
    raise Refusal(Code.MANIFEST_INVALID, detail, errors=[FieldError(pointer=pointer, detail=detail)])


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
