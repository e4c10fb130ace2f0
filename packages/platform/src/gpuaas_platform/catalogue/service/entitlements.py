"""Which tenants may have which apps, and who may know of an app at all."""

from dataclasses import replace

from gpuaas_contract import ids
from gpuaas_contract.catalogue import Entitlement, EntitlementCreate, EntitlementPage
from gpuaas_contract.events import EntitlementEvent
from gpuaas_contract.offers import Offer
from gpuaas_contract.problems import Code
from gpuaas_platform.catalogue.records import EntitlementRecord
from gpuaas_platform.catalogue.storage import entitlements as store
from gpuaas_platform.catalogue.storage import versions as catalogue_store
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import Refusal, not_found
from gpuaas_platform.core.pages import cut_page, decode_cursor
from gpuaas_platform.core.records import to_wire
from gpuaas_platform.identity.rules.policy import Caller, Permission, Right, Scope
from gpuaas_platform.identity.service.apps import sees_app, tenants_of
from gpuaas_platform.identity.storage import tenants as identity_store


async def require_entitled(
    tx: Transaction, caller: Caller, tenant_id: str, app_slug: str, *, known: bool = False
) -> None:
    """Refuse an app that the tenant may not have: as something that is not there, to those who may not know of it.
    Who sees an instance of the app knows it (`known`)."""
    if await store.any_of(tx, [tenant_id], app_slug):
        caller.used[Right(None, Scope(tenant_id=tenant_id, app_slug=app_slug))] = None
        return
    if not known and caller.app_slug != app_slug and not await sees_app(tx, caller, app_slug):
        raise not_found("app", app_slug, denied=True)
    grant = Offer.CREATE_ENTITLEMENT.action("grant_entitlement", "Entitle the tenant to the app")
    raise Refusal(
        Code.NOT_ENTITLED,
        f"the tenant is not entitled to {app_slug}; the app's publisher or an operator can grant it",
        allowed_actions=[grant],
        context={"tenant_id": tenant_id, "app_slug": app_slug},
    )


async def create_entitlement(tx: Transaction, caller: Caller, body: EntitlementCreate) -> Entitlement:
    scope = Scope(tenant_id=body.tenant_id, app_slug=body.app_slug)
    caller.require(Permission.ENTITLEMENT_MANAGE, scope, "tenant", body.tenant_id)
    if await identity_store.get_tenant(tx, body.tenant_id) is None:
        raise not_found("tenant", body.tenant_id)
    if await catalogue_store.newest_version(tx, body.app_slug) is None:
        raise not_found("app", body.app_slug)
    row = await store.insert(tx, ids.new_id(ids.ENTITLEMENT), body.tenant_id, body.app_slug)
    if row is None:
        raise Refusal(Code.NAME_TAKEN, f"the tenant is entitled to {body.app_slug} already")
    await tx.changed(EntitlementEvent.GRANTED, row)
    await tx.audit("entitlement.grant", row.id, tenant_id=body.tenant_id, detail={"app": body.app_slug})
    return to_wire(Entitlement, row)


async def get_entitlement(tx: Transaction, caller: Caller, entitlement_id: str) -> Entitlement:
    row = await store.get(tx, entitlement_id)
    if row is None or not _sees(caller, row):
        raise not_found("entitlement", entitlement_id, denied=row is not None)
    return to_wire(Entitlement, row)


def _sees(caller: Caller, row: EntitlementRecord) -> bool:
    scope = Scope(tenant_id=row.tenant_id, app_slug=row.app_slug)
    return caller.sees(scope) or caller.may(Permission.ENTITLEMENT_MANAGE, scope)


async def list_entitlements(
    tx: Transaction, caller: Caller, tenant_id: str | None, app_slug: str | None, cursor: str | None, limit: int
) -> EntitlementPage:
    """Of the tenants that the caller may see, and of the apps that it publishes."""
    rows = await store.list_matching(
        tx,
        tenant_id=tenant_id,
        app_slug=app_slug,
        tenants=None if caller.is_platform_admin else tenants_of(caller),
        apps=caller.published_apps,
        after=decode_cursor(cursor),
        limit=limit + 1,
    )
    rows, after = cut_page(rows, limit)
    return EntitlementPage(items=[to_wire(Entitlement, row) for row in rows], next_cursor=after)


async def delete_entitlement(tx: Transaction, caller: Caller, entitlement_id: str) -> Entitlement:
    """Refuse from now on whatever brings the app to a machine; instances that run stay, and can be taken apart."""
    row = await store.lock(tx, entitlement_id)
    if row is None or not _sees(caller, row):
        raise not_found("entitlement", entitlement_id, denied=row is not None)
    scope = Scope(tenant_id=row.tenant_id, app_slug=row.app_slug)
    caller.require(Permission.ENTITLEMENT_MANAGE, scope, "entitlement", entitlement_id)
    tx.match(row)
    await store.delete(tx, entitlement_id)
    await revoked(tx, row)
    return to_wire(Entitlement, row)


async def revoked(tx: Transaction, row: EntitlementRecord) -> None:
    await tx.changed(EntitlementEvent.REVOKED, replace(row, revision=row.revision + 1))
    await tx.audit("entitlement.revoke", row.id, tenant_id=row.tenant_id, detail={"app": row.app_slug})
