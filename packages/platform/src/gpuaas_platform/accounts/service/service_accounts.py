"""Service accounts, and the keys and secrets that they log in with."""

import secrets
from dataclasses import replace

from gpuaas_contract import ids
from gpuaas_contract.events import ServiceAccountEvent
from gpuaas_contract.identity import (
    VALID_KEYS_PER_KIND,
    Role,
    ServiceAccount,
    ServiceAccountCreate,
    ServiceAccountKey,
    ServiceAccountKeyAdd,
    ServiceAccountKeyKind,
    ServiceAccountKeyPage,
    ServiceAccountPage,
    ServiceAccountUpdate,
)
from gpuaas_contract.offers import Offer
from gpuaas_contract.problems import Code, FieldError
from gpuaas_platform.access.storage import access as access_store
from gpuaas_platform.accounts.records import ServiceAccountRecord, ServiceAccountView
from gpuaas_platform.accounts.service.sessions import hash_secret
from gpuaas_platform.accounts.storage import service_accounts as store
from gpuaas_platform.catalogue.service.entitlements import require_entitled
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import Refusal, not_found
from gpuaas_platform.core.pages import cut_page, decode_cursor
from gpuaas_platform.core.records import to_wire
from gpuaas_platform.identity.rules.policy import PROJECT_ROLES, Caller, Permission, Scope
from gpuaas_platform.identity.service.assertions import check_public_key
from gpuaas_platform.identity.service.tenants import get_tenant, require_project, visible_projects


async def create_service_account(tx: Transaction, caller: Caller, body: ServiceAccountCreate) -> ServiceAccount:
    tenant_id = body.tenant_id
    if body.project_id is not None:
        project = await require_project(tx, caller, body.project_id, Permission.SERVICE_ACCOUNT_CREATE)
        tenant_id = project.tenant_id
    elif body.tenant_id is not None:
        await get_tenant(tx, caller, body.tenant_id)
        # A tenant's account can do what its role can in every project: only who has them all gives that.
        caller.require(Permission.SERVICE_ACCOUNT_CREATE, Scope(tenant_id=body.tenant_id), "tenant", body.tenant_id)
    _check_role(body)
    if body.app_slug is not None and tenant_id is not None:
        await require_entitled(tx, caller, tenant_id, body.app_slug)
    if body.public_key_pem is not None:
        check_public_key(body.public_key_pem)
    row = await store.insert(
        tx,
        ids.new_id(ids.SERVICE_ACCOUNT),
        project_id=body.project_id,
        tenant_id=body.tenant_id,
        name=body.name,
        app_slug=body.app_slug,
        role=body.role,
    )
    if row is None:
        raise Refusal(Code.NAME_TAKEN, f"there is a service account named {body.name!r} here already")
    if body.public_key_pem is not None:
        key_id = ids.new_id(ids.SERVICE_ACCOUNT_KEY)
        kind = ServiceAccountKeyKind.PUBLIC_KEY
        await store.insert_key(tx, key_id, row.id, kind, public_key_pem=body.public_key_pem)
    await _changed(tx, row, ServiceAccountEvent.CREATED, "service_account.create")
    return to_wire(ServiceAccount, row)


def _check_role(body: ServiceAccountCreate) -> None:
    allowed = PROJECT_ROLES if body.project_id is not None else PROJECT_ROLES | {Role.TENANT_ADMIN}
    if body.role is not None and body.role not in allowed:
        scope = "a project's" if body.project_id is not None else "a tenant's"
        detail = f"{scope} service account has one of the roles {', '.join(sorted(allowed))}"
        raise Refusal(Code.INVALID_REQUEST, detail, errors=[FieldError(pointer="/role", detail=detail)])


def _require(
    caller: Caller, row: ServiceAccountView | None, account_id: str, permission: Permission
) -> ServiceAccountView:
    if row is None:
        raise not_found("service account", account_id)
    scope = Scope(tenant_id=row.scope_tenant_id, project_id=row.project_id)
    caller.require(permission, scope, "service account", account_id)
    return row


async def _lock(tx: Transaction, caller: Caller, account_id: str, *, match: bool = True) -> ServiceAccountView:
    row = await store.lock(tx, account_id)
    row = _require(caller, row, account_id, Permission.SERVICE_ACCOUNT_MANAGE)
    if match:
        tx.match(row)
    return row


async def _changed(
    tx: Transaction, row: ServiceAccountRecord, event: ServiceAccountEvent, action: str, **detail: object
) -> None:
    await tx.changed(event, row, project_id=row.project_id)
    await tx.audit(action, row.id, tenant_id=row.tenant_id, project_id=row.project_id, detail=detail)


async def get_service_account(tx: Transaction, caller: Caller, account_id: str) -> ServiceAccount:
    row = _require(caller, await store.get(tx, account_id), account_id, Permission.SERVICE_ACCOUNT_READ)
    return to_wire(ServiceAccount, row)


async def list_service_accounts(
    tx: Transaction, caller: Caller, project_id: str | None, tenant_id: str | None, cursor: str | None, limit: int
) -> ServiceAccountPage:
    """Of a project, of a tenant itself, or all that the caller may see."""
    projects: list[str] | None = []
    tenants: list[str] = []
    if tenant_id is not None:
        await get_tenant(tx, caller, tenant_id)
        caller.require(Permission.SERVICE_ACCOUNT_READ, Scope(tenant_id=tenant_id), "tenant", tenant_id)
        tenants = [tenant_id]
    if project_id is not None or tenant_id is None:
        projects = await visible_projects(tx, caller, project_id, Permission.SERVICE_ACCOUNT_READ)
    if project_id is None and tenant_id is None:
        may_read = caller.tenants_with(Permission.SERVICE_ACCOUNT_READ)
        tenants = [id for id in may_read if caller.may(Permission.SERVICE_ACCOUNT_READ, Scope(tenant_id=id))]
    rows = await store.list_all(tx, projects, tenants, decode_cursor(cursor), limit + 1)
    rows, after = cut_page(rows, limit)
    return ServiceAccountPage(items=[to_wire(ServiceAccount, row) for row in rows], next_cursor=after)


async def update_service_account(
    tx: Transaction, caller: Caller, account_id: str, body: ServiceAccountUpdate
) -> ServiceAccount:
    row: ServiceAccountRecord = await _lock(tx, caller, account_id)
    if body.disabled != row.disabled:
        row = await store.set_disabled(tx, account_id, body.disabled)
        if body.disabled:
            await access_store.end_of_principal(tx, account_id)
        word = "disable" if body.disabled else "enable"
        await _changed(tx, row, ServiceAccountEvent(f"{word}d"), f"service_account.{word}")
    return to_wire(ServiceAccount, row)


async def delete_service_account(tx: Transaction, caller: Caller, account_id: str) -> ServiceAccount:
    row = await _lock(tx, caller, account_id)
    await access_store.end_of_principal(tx, account_id)
    await store.delete(tx, account_id)
    gone = replace(row, revision=row.revision + 1)
    await _changed(tx, gone, ServiceAccountEvent.DELETED, "service_account.delete", name=row.name)
    return to_wire(ServiceAccount, row)


# Keys: a public key, or a secret of which only the hash is kept


async def list_keys(tx: Transaction, caller: Caller, account_id: str) -> ServiceAccountKeyPage:
    _require(caller, await store.get(tx, account_id), account_id, Permission.SERVICE_ACCOUNT_READ)
    keys = await store.list_keys(tx, account_id)
    return ServiceAccountKeyPage(items=[to_wire(ServiceAccountKey, key) for key in keys])


async def add_key(tx: Transaction, caller: Caller, account_id: str, body: ServiceAccountKeyAdd) -> ServiceAccountKey:
    check_public_key(body.public_key_pem)
    kind = ServiceAccountKeyKind.PUBLIC_KEY
    await _lock_with_room(tx, caller, account_id, kind)
    key_id = ids.new_id(ids.SERVICE_ACCOUNT_KEY)
    key = await store.insert_key(tx, key_id, account_id, kind, kid=body.kid, public_key_pem=body.public_key_pem)
    if key is None:
        raise Refusal(Code.NAME_TAKEN, f"the account has a key named {body.kid!r} already")
    await _changed(
        tx, await store.touch(tx, account_id), ServiceAccountEvent.KEY_ADDED, "service_account.add_key", key_id=key_id
    )
    return to_wire(ServiceAccountKey, key)


async def add_secret(tx: Transaction, caller: Caller, account_id: str) -> ServiceAccountKey:
    kind = ServiceAccountKeyKind.SECRET
    await _lock_with_room(tx, caller, account_id, kind)
    secret = f"gpuaas-secret-{secrets.token_urlsafe(32)}"
    key_id = ids.new_id(ids.SERVICE_ACCOUNT_KEY)
    key = await store.insert_key(tx, key_id, account_id, kind, secret_hash=hash_secret(secret))
    assert key is not None
    await _changed(
        tx,
        await store.touch(tx, account_id),
        ServiceAccountEvent.KEY_ADDED,
        "service_account.add_secret",
        key_id=key_id,
    )
    return to_wire(ServiceAccountKey, key, secret=secret)


async def _lock_with_room(tx: Transaction, caller: Caller, account_id: str, kind: ServiceAccountKeyKind) -> None:
    await _lock(tx, caller, account_id)
    valid = [key.id for key in await store.list_keys(tx, account_id) if key.kind == kind]
    if len(valid) >= VALID_KEYS_PER_KIND:
        raise Refusal(
            Code.KEY_LIMIT,
            f"the account has {len(valid)} of this kind; revoke the one that is not used any more first",
            allowed_actions=[
                Offer.REVOKE_SERVICE_ACCOUNT_KEY.action(
                    "revoke", f"Revoke {key_id}", service_account_id=account_id, key_id=key_id
                )
                for key_id in valid
            ],
        )


async def revoke_key(tx: Transaction, caller: Caller, account_id: str, key_id: str) -> ServiceAccountKey:
    """Tokens that it got end with it. Who has the other key notices nothing but one more request."""
    await _lock(tx, caller, account_id, match=False)
    key = await store.delete_key(tx, account_id, key_id)
    if key is None:
        raise not_found("key", key_id)
    tx.match(key)
    row = await store.touch(tx, account_id, withdraw_tokens=True)
    await _changed(tx, row, ServiceAccountEvent.KEY_REVOKED, "service_account.revoke_key", key_id=key_id)
    return to_wire(ServiceAccountKey, key)


async def find_own(tx: Transaction, caller: Caller) -> ServiceAccountView | None:
    """Find the caller's own account, if it is one."""
    return await store.get(tx, caller.id)
