"""Tenants and projects."""

from dataclasses import replace

from gpuaas_contract import ids
from gpuaas_contract.events import EntitlementEvent, ProjectEvent, TenantEvent
from gpuaas_contract.identity import (
    Project,
    ProjectCreate,
    ProjectPage,
    ProjectUpdate,
    Tenant,
    TenantCreate,
    TenantPage,
    TenantUpdate,
)
from gpuaas_contract.problems import Code
from gpuaas_platform.accounts.storage import users as user_store
from gpuaas_platform.catalogue.storage import entitlements as entitlement_store
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import Refusal, not_found
from gpuaas_platform.core.pages import cut_page, decode_cursor
from gpuaas_platform.core.records import to_wire
from gpuaas_platform.identity.records import ProjectRecord
from gpuaas_platform.identity.rules.policy import Caller, Permission, Scope
from gpuaas_platform.identity.storage import tenants as store

MOST_PROJECTS = 10_000


async def create_tenant(tx: Transaction, caller: Caller, body: TenantCreate) -> Tenant:
    caller.require(Permission.TENANT_CREATE, Scope(), "tenant", body.name)
    row = await store.insert_tenant(tx, ids.new_id(ids.TENANT), body.name, body.title or body.name)
    if row is None:
        raise Refusal(Code.NAME_TAKEN, f"a tenant named {body.name!r} exists already")
    await tx.changed(TenantEvent.CREATED, row)
    await tx.audit("tenant.create", row.id, tenant_id=row.id)
    return to_wire(Tenant, row)


async def get_tenant(tx: Transaction, caller: Caller, tenant_id: str) -> Tenant:
    row = await store.get_tenant(tx, tenant_id)
    if row is None:
        raise not_found("tenant", tenant_id)
    caller.require(Permission.TENANT_READ, Scope(tenant_id=tenant_id), "tenant", tenant_id)
    return to_wire(Tenant, row)


async def list_tenants(tx: Transaction, caller: Caller, cursor: str | None, limit: int) -> TenantPage:
    seen = None if caller.is_platform_admin else sorted(caller.tenant_ids)
    rows, after = cut_page(await store.list_tenants(tx, seen, decode_cursor(cursor), limit + 1), limit)
    return TenantPage(items=[to_wire(Tenant, row) for row in rows], next_cursor=after)


async def update_tenant(tx: Transaction, caller: Caller, tenant_id: str, body: TenantUpdate) -> Tenant:
    await _lock_tenant(tx, caller, tenant_id, Permission.TENANT_UPDATE)
    row = await store.set_tenant_title(tx, tenant_id, body.title)
    await tx.changed(TenantEvent.UPDATED, row)
    await tx.audit("tenant.update", tenant_id, tenant_id=tenant_id)
    return to_wire(Tenant, row)


async def delete_tenant(tx: Transaction, caller: Caller, tenant_id: str) -> Tenant:
    """Its rows and its audit trail stay; nobody but the audit trail knows of it any more."""
    await _lock_tenant(tx, caller, tenant_id, Permission.TENANT_DELETE)
    _require_empty("tenant", await store.count_in_tenant(tx, tenant_id))
    await user_store.delete_memberships_in(tx, tenant_id, None)
    for entitlement in await entitlement_store.delete_in(tx, tenant_id):
        await tx.changed(EntitlementEvent.REVOKED, replace(entitlement, revision=entitlement.revision + 1))
    row = await store.end_tenant(tx, tenant_id)
    await tx.changed(TenantEvent.DELETED, row)
    await tx.audit("tenant.delete", tenant_id, tenant_id=tenant_id, detail={"name": row.name})
    return to_wire(Tenant, row)


async def _lock_tenant(tx: Transaction, caller: Caller, tenant_id: str, permission: Permission) -> None:
    row = await store.lock_tenant(tx, tenant_id)
    if row is None:
        raise not_found("tenant", tenant_id)
    caller.require(permission, Scope(tenant_id=tenant_id), "tenant", tenant_id)
    tx.match(row)


def _require_empty(noun: str, counts: dict[str, int]) -> None:
    there = {what.replace("_", " "): number for what, number in counts.items() if number}
    if there:
        listed = ", ".join(f"{number} {what}" for what, number in there.items())
        raise Refusal(Code.NOT_EMPTY, f"the {noun} still has {listed}; end them first", context=there)


async def create_project(tx: Transaction, caller: Caller, body: ProjectCreate) -> Project:
    await get_tenant(tx, caller, body.tenant_id)
    caller.require(Permission.PROJECT_CREATE, Scope(tenant_id=body.tenant_id), "tenant", body.tenant_id)
    row = await store.insert_project(tx, ids.new_id(ids.PROJECT), body.tenant_id, body.name, body.title or body.name)
    if row is None:
        raise Refusal(Code.NAME_TAKEN, f"the tenant has a project named {body.name!r} already")
    await tx.changed(ProjectEvent.CREATED, row, project_id=row.id)
    await tx.audit("project.create", row.id, project_id=row.id)
    return to_wire(Project, row)


async def require_project(tx: Transaction, caller: Caller, project_id: str, permission: Permission) -> ProjectRecord:
    """The project, where the caller has the permission in it."""
    row = await store.get_project(tx, project_id)
    if row is None:
        raise not_found("project", project_id)
    scope = Scope(tenant_id=row.tenant_id, project_id=project_id)
    caller.require(permission, scope, "project", project_id)
    return row


async def visible_projects(
    tx: Transaction, caller: Caller, project_id: str | None, permission: Permission
) -> list[str] | None:
    """The projects that a list covers: the one that was asked for, else all that the caller may see.

    None stands for every project there is."""
    if project_id is not None:
        await require_project(tx, caller, project_id, permission)
        return [project_id]
    if caller.is_platform_admin:
        return None
    rows = await store.list_projects(tx, caller.project_ids, caller.whole_tenant_ids, None, "", MOST_PROJECTS)
    scopes = {row.id: Scope(tenant_id=row.tenant_id, project_id=row.id) for row in rows}
    return [id for id, scope in scopes.items() if caller.may(permission, scope)]


async def require_owner(
    tx: Transaction, caller: Caller, project_id: str | None, tenant_id: str | None, permission: Permission
) -> str:
    """The tenant, where the caller has the permission in the project or in the tenant itself."""
    if project_id is not None:
        return (await require_project(tx, caller, project_id, permission)).tenant_id
    assert tenant_id is not None
    await get_tenant(tx, caller, tenant_id)
    caller.require(permission, Scope(tenant_id=tenant_id), "tenant", tenant_id)
    return tenant_id


async def visible_owners(
    tx: Transaction, caller: Caller, project_id: str | None, tenant_id: str | None, permission: Permission
) -> list[str] | None:
    """Whose things a list covers: those of the project, of the tenant itself, else all that the caller may see.

    None stands for everybody."""
    if tenant_id is not None:
        await require_owner(tx, caller, None, tenant_id, permission)
        if project_id is None:
            return [tenant_id]
    projects = await visible_projects(tx, caller, project_id, permission)
    if projects is None:
        return None
    if project_id is not None:
        return projects + ([] if tenant_id is None else [tenant_id])
    tenants = {id for id in caller.tenants_with(permission) if caller.may(permission, Scope(tenant_id=id))}
    return projects + sorted(tenants)


async def get_project(tx: Transaction, caller: Caller, project_id: str) -> Project:
    return to_wire(Project, await require_project(tx, caller, project_id, Permission.PROJECT_READ))


async def list_projects(
    tx: Transaction, caller: Caller, tenant_id: str | None, cursor: str | None, limit: int
) -> ProjectPage:
    seen = None if caller.is_platform_admin else caller.project_ids
    rows = await store.list_projects(tx, seen, caller.whole_tenant_ids, tenant_id, decode_cursor(cursor), limit + 1)
    rows, after = cut_page(rows, limit)
    return ProjectPage(items=[to_wire(Project, row) for row in rows], next_cursor=after)


async def update_project(tx: Transaction, caller: Caller, project_id: str, body: ProjectUpdate) -> Project:
    await _lock_project(tx, caller, project_id, Permission.PROJECT_UPDATE)
    row = await store.set_project_title(tx, project_id, body.title)
    await tx.changed(ProjectEvent.UPDATED, row, project_id=project_id)
    await tx.audit("project.update", project_id, project_id=project_id)
    return to_wire(Project, row)


async def delete_project(tx: Transaction, caller: Caller, project_id: str) -> Project:
    """End a project. Its rows stay readable for the bill and the audit trail."""
    await _lock_project(tx, caller, project_id, Permission.PROJECT_DELETE)
    _require_empty("project", await store.count_in_project(tx, project_id))
    await user_store.delete_memberships_in(tx, None, project_id)
    row = await store.end_project(tx, project_id)
    await tx.changed(ProjectEvent.DELETED, row, project_id=project_id)
    await tx.audit("project.delete", project_id, project_id=project_id, detail={"name": row.name})
    return to_wire(Project, row)


async def _lock_project(tx: Transaction, caller: Caller, project_id: str, permission: Permission) -> None:
    row = await store.lock_project(tx, project_id)
    await require_project(tx, caller, project_id, permission)
    assert row is not None
    tx.match(row)
