"""The catalogue: publishing app versions."""

from collections import OrderedDict
from typing import Protocol

from gpuaas_contract import ids
from gpuaas_contract.artifacts import ArtifactStatus
from gpuaas_contract.base import JsonObject
from gpuaas_contract.catalogue import (
    App,
    AppPage,
    AppVersion,
    AppVersionEnd,
    AppVersionEntry,
    AppVersionPage,
    AppVersionPublish,
    AppVersionStatus,
)
from gpuaas_contract.events import AppVersionEvent
from gpuaas_contract.manifest import ArtifactSlot, Manifest
from gpuaas_contract.problems import Code, FieldError
from gpuaas_platform.artifacts.storage import artifacts as artifact_store
from gpuaas_platform.catalogue.records import AppVersionRecord
from gpuaas_platform.catalogue.service.entitlements import require_entitled
from gpuaas_platform.catalogue.storage import versions as store
from gpuaas_platform.core.checks import Check
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import Refusal, not_found
from gpuaas_platform.core.pages import cut_page, decode_cursor
from gpuaas_platform.core.records import to_wire
from gpuaas_platform.identity.rules.policy import Caller, Permission, Scope
from gpuaas_platform.identity.service.apps import sees_app, tenants_of

_KNOWN_MANIFESTS: OrderedDict[str, Manifest] = OrderedDict()
MOST_KNOWN = 200


class Versioned(Protocol):
    """An instance, with the manifest of the version that it has."""

    @property
    def app_version_id(self) -> str: ...

    @property
    def manifest(self) -> JsonObject: ...


def manifest_of(instance: Versioned) -> Manifest:
    return _read_once(instance.app_version_id, instance.manifest)


def manifest_of_version(version: AppVersionRecord) -> Manifest:
    return _read_once(version.id, version.manifest)


def _read_once(version_id: str, document: JsonObject) -> Manifest:
    """A published manifest never changes: the models of those that were asked for last are kept."""
    known = _KNOWN_MANIFESTS.get(version_id)
    if known is None:
        known = _KNOWN_MANIFESTS[version_id] = Manifest.model_validate(document)
        if len(_KNOWN_MANIFESTS) > MOST_KNOWN:
            _KNOWN_MANIFESTS.popitem(last=False)
    return known


async def publish_version(tx: Transaction, caller: Caller, body: AppVersionPublish) -> AppVersion:
    manifest = body.manifest
    caller.require(Permission.APP_PUBLISH, Scope(app_slug=manifest.slug), "app", manifest.slug)
    document = manifest.model_dump(mode="json", by_alias=True)
    verdict = tx.verdict(Check(owner=f"apps/{manifest.slug}", document=document))
    if problems := verdict.problems:
        errors = [FieldError(pointer=f"/manifest{problem.pointer}", detail=problem.detail) for problem in problems]
        words = "; ".join(f"{problem.pointer}: {problem.detail}" for problem in problems[:10])
        raise verdict.refusal(Code.MANIFEST_INVALID, words, errors)
    for number, slot in enumerate(manifest.artifacts):
        await _check_artifact(tx, manifest.slug, slot, f"/manifest/artifacts/{number}")
    row = await store.insert_version(tx, ids.new_id(ids.APP_VERSION), manifest.slug, manifest.version, document)
    if row is None:
        present = await store.get_version(tx, manifest.slug, manifest.version)
        # As it reads today: a manifest that was kept before a field was added is still the same one.
        if present is not None and manifest_of_version(present) == manifest:
            return to_wire(AppVersion, present)
        raise Refusal(
            Code.VERSION_EXISTS,
            f"{manifest.slug} {manifest.version} was published with other content; raise the version",
        )
    await tx.changed(AppVersionEvent.PUBLISHED, row)
    await tx.audit("app_version.publish", row.id, detail={"app": manifest.slug, "version": manifest.version})
    return to_wire(AppVersion, row)


async def _check_artifact(tx: Transaction, app_slug: str, slot: ArtifactSlot, pointer: str) -> None:
    """A version names what can be delivered, and of the kind that it says."""
    rows = [] if slot.digest is None else await artifact_store.list_of_owner(tx, app_slug, None, slot.digest)
    if not rows or rows[0].status != ArtifactStatus.PROMOTED:
        state = f"it is {rows[0].status}" if rows else "there is none with that digest"
        detail = f"artifact {slot.name!r} is not promoted ({state}): push, verify and promote it, then publish"
        pointer += "/digest"
    elif rows[0].media_type != slot.media_type:
        detail = f"artifact {slot.name!r} is {rows[0].media_type}, not {slot.media_type}"
        pointer += "/media_type"
    else:
        return
    raise Refusal(Code.MANIFEST_INVALID, detail, errors=[FieldError(pointer=pointer, detail=detail)])


async def end_version(
    tx: Transaction, caller: Caller, version_id: str, status: AppVersionStatus, body: AppVersionEnd
) -> AppVersion:
    """Deprecate or retire: forwards only, and what runs is left alone."""
    row = await store.lock_version(tx, version_id)
    if row is None or not await sees_app(tx, caller, row.app_slug):
        raise not_found("app version", version_id, denied=row is not None)
    caller.require(Permission.APP_PUBLISH, Scope(app_slug=row.app_slug), "app version", version_id)
    tx.match(row)
    order = list(AppVersionStatus)
    if order.index(row.status) >= order.index(status):
        raise Refusal(Code.INVALID_STATE, f"{row.app_slug} {row.version} is {row.status} already")
    row = await store.set_status(tx, version_id, status, body.reason)
    await tx.changed(AppVersionEvent(status), row, message=body.reason)
    action = "app_version.deprecate" if status == AppVersionStatus.DEPRECATED else "app_version.retire"
    await tx.audit(action, version_id, detail={"app": row.app_slug, "version": row.version})
    return to_wire(AppVersion, row)


async def get_version(tx: Transaction, caller: Caller, app_slug: str, version: str) -> AppVersion:
    """`latest` is the one that is deployed where none is named."""
    row = await _find(tx, app_slug, version)
    if row is None or not await _sees_version(tx, caller, row):
        raise not_found("app version", f"{app_slug} {version}")
    return to_wire(AppVersion, row)


async def get_version_by_id(tx: Transaction, caller: Caller, version_id: str) -> AppVersion:
    row = await store.get_version_by_id(tx, version_id)
    if row is None or not await _sees_version(tx, caller, row):
        raise not_found("app version", version_id)
    return to_wire(AppVersion, row)


async def _sees_version(tx: Transaction, caller: Caller, row: AppVersionRecord) -> bool:
    """Who may know of the app; and the app's controller while an instance of its own has this very version: what a
    tenant is no longer entitled to must still be taken apart."""
    if await sees_app(tx, caller, row.app_slug):
        return True
    if caller.app_slug != row.app_slug:
        return False
    return await store.is_in_use(tx, row.id, caller.project_ids, caller.whole_tenant_ids)


async def _find(tx: Transaction, app_slug: str, version: str | None) -> AppVersionRecord | None:
    if version in {None, "latest"}:
        return await store.latest_version(tx, app_slug)
    return await store.get_version(tx, app_slug, str(version))


async def deployable_version(
    tx: Transaction, caller: Caller, tenant_id: str, app_slug: str, version: str | None
) -> AppVersionRecord:
    """The version for a deploy or an upgrade in a tenant; the newest published one where none is named."""
    await require_entitled(tx, caller, tenant_id, app_slug)
    row = await _find(tx, app_slug, version)
    if row is None:
        raise not_found("app version", f"{app_slug} {version or 'latest'}")
    refuse_retired(row)
    return row


def refuse_retired(row: AppVersionRecord) -> None:
    """Before a deploy with a version, or an upgrade to it."""
    if row.status == AppVersionStatus.RETIRED:
        why = f": {row.reason}" if row.reason else ""
        detail = f"{row.app_slug} {row.version} is retired, so nothing is deployed with it any more{why}"
        raise Refusal(Code.VERSION_RETIRED, detail)


async def list_apps(tx: Transaction, caller: Caller, cursor: str | None, limit: int) -> AppPage:
    tenants = None if caller.is_platform_admin else tenants_of(caller)
    rows = await store.list_apps(tx, tenants, caller.published_apps, decode_cursor(cursor), limit + 1)
    rows, after = cut_page(rows, limit)
    apps = [
        App(
            slug=row.id,
            title=row.manifest["title"],
            description=row.manifest["description"],
            icon=row.manifest.get("icon"),
            latest_version=row.version,
            status=row.status,
            published_at=row.created_at,
        )
        for row in rows
    ]
    return AppPage(items=apps, next_cursor=after)


async def list_versions(
    tx: Transaction, caller: Caller, app_slug: str, cursor: str | None, limit: int
) -> AppVersionPage:
    if not await sees_app(tx, caller, app_slug):
        raise not_found("app", app_slug)
    rows, after = cut_page(await store.list_versions(tx, app_slug, decode_cursor(cursor), limit + 1), limit)
    return AppVersionPage(items=[to_wire(AppVersionEntry, row) for row in rows], next_cursor=after)
