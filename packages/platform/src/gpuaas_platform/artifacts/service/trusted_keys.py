"""Trusted keys: whose signature makes an artifact of an app or a project verified."""

from gpuaas_contract import ids
from gpuaas_contract.artifacts import TrustedKey, TrustedKeyCreate, TrustedKeyPage
from gpuaas_contract.events import TrustedKeyEvent
from gpuaas_contract.problems import Code
from gpuaas_platform.artifacts.records import TrustedKeyRecord
from gpuaas_platform.artifacts.rules.signatures import read_key
from gpuaas_platform.artifacts.storage import trusted_keys as store
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.core.pages import cut_page, decode_cursor
from gpuaas_platform.core.records import to_wire
from gpuaas_platform.identity.rules.policy import Caller, Permission
from gpuaas_platform.identity.service.owners import require_owned, require_owner_of_artifacts, seen_owners

NOUN = "trusted_key"


async def _changed(tx: Transaction, row: TrustedKeyRecord, event: TrustedKeyEvent, action: str) -> None:
    await tx.changed(event, row)
    detail = {"app": row.app_slug, "fingerprint": row.fingerprint}
    await tx.audit(f"{NOUN}.{action}", row.id, project_id=row.project_id, detail=detail)


async def add_key(tx: Transaction, caller: Caller, body: TrustedKeyCreate) -> TrustedKey:
    await require_owner_of_artifacts(tx, caller, body.app_slug, body.project_id, Permission.ARTIFACT_MANAGE)
    key = read_key(body.public_key_pem)
    row = await store.insert(tx, ids.new_id(ids.TRUSTED_KEY), body, key)
    if row is None:
        raise Refusal(Code.NAME_TAKEN, f"there is a trusted key named {body.name!r} already")
    await _changed(tx, row, TrustedKeyEvent.CREATED, "create")
    return to_wire(TrustedKey, row)


async def get_key(tx: Transaction, caller: Caller, key_id: str) -> TrustedKey:
    found = await store.get(tx, key_id)
    row = await require_owned(tx, caller, found, Permission.ARTIFACT_READ, "trusted key", key_id)
    return to_wire(TrustedKey, row)


async def list_keys(
    tx: Transaction, caller: Caller, app_slug: str | None, project_id: str | None, cursor: str | None, limit: int
) -> TrustedKeyPage:
    projects, apps = await seen_owners(tx, caller, app_slug, project_id)
    rows = await store.list_matching(tx, projects, apps, decode_cursor(cursor), limit + 1)
    rows, after = cut_page(rows, limit)
    return TrustedKeyPage(items=[to_wire(TrustedKey, row) for row in rows], next_cursor=after)


async def delete_key(tx: Transaction, caller: Caller, key_id: str) -> TrustedKey:
    """Trust the key no longer. Artifacts that were verified with it stay verified until they are retired."""
    found = await store.lock(tx, key_id)
    row = await require_owned(tx, caller, found, Permission.ARTIFACT_MANAGE, "trusted key", key_id)
    tx.match(row)
    deleted = await store.delete(tx, key_id)
    await _changed(tx, deleted, TrustedKeyEvent.DELETED, "delete")
    return to_wire(TrustedKey, deleted)
