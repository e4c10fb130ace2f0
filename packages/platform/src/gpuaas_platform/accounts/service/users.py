"""People, their passwords and their memberships."""

from dataclasses import replace

from gpuaas_contract import ids
from gpuaas_contract.events import MembershipEvent, UserEvent
from gpuaas_contract.identity import (
    Membership,
    MembershipCreate,
    MembershipPage,
    Role,
    User,
    UserCreate,
    UserPage,
    UserUpdate,
)
from gpuaas_contract.problems import Code, FieldError
from gpuaas_platform.access.service import grants
from gpuaas_platform.access.storage import access as access_store
from gpuaas_platform.access.storage import grants as grant_store
from gpuaas_platform.accounts.records import ScopedMembership, UserRecord
from gpuaas_platform.accounts.service import ssh_keys
from gpuaas_platform.accounts.storage import sessions as session_store
from gpuaas_platform.accounts.storage import users as store
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import Refusal, not_found
from gpuaas_platform.core.pages import cut_page, decode_cursor
from gpuaas_platform.core.records import to_wire
from gpuaas_platform.identity.rules.policy import Caller, Permission, Scope
from gpuaas_platform.identity.service.tenants import get_project, get_tenant, require_project

_PROJECT_ROLES = {Role.PROJECT_ADMIN, Role.PROJECT_MEMBER, Role.PROJECT_VIEWER}


# Passwords


async def change_own_password(tx: Transaction, caller: Caller, session_id: str, password_hash: str | None) -> User:
    """`password_hash` is None where the present password was given wrong: decided before, outside of this."""
    if password_hash is None:
        detail = "this is not your present password"
        raise Refusal(Code.INVALID_REQUEST, detail, errors=[FieldError(pointer="/current_password", detail=detail)])
    row = await store.set_password(tx, caller.id, password_hash, change_required=False)
    await session_store.keep_only(tx, caller.id, session_id, row.epoch)
    await tx.changed(UserEvent.PASSWORD_CHANGED, row)
    await tx.audit("user.change_password", caller.id)
    return to_wire(User, row)


# Users


async def exist(tx: Transaction) -> bool:
    return await store.any_user(tx)


async def create_first_admin(tx: Transaction, email: str, password_hash: str, *, one_time: bool) -> bool:
    """Only while there is nobody: the file that it comes from stays on disk, and must not reset anything."""
    if await store.any_user(tx):
        return False
    user = await store.insert(tx, ids.new_id(ids.USER), email.lower(), password_hash, one_time)
    if user is None:
        return False
    await store.insert_membership(tx, ids.new_id(ids.MEMBERSHIP), user.id, Role.PLATFORM_ADMIN, None, None)
    await tx.changed(UserEvent.CREATED, user)
    await tx.audit("user.create_first_admin", user.id)
    return True


async def create_user(tx: Transaction, caller: Caller, body: UserCreate, password_hash: str) -> User:
    caller.require(Permission.USER_MANAGE, Scope(), "user", body.email)
    row = await store.insert(tx, ids.new_id(ids.USER), body.email.lower(), password_hash, body.password_change_required)
    if row is None:
        raise Refusal(Code.NAME_TAKEN, f"a user with the e-mail {body.email!r} exists already")
    await tx.changed(UserEvent.CREATED, row)
    await tx.audit("user.create", row.id)
    return to_wire(User, row)


async def get_user(tx: Transaction, caller: Caller, user_id: str) -> User:
    caller.require(Permission.USER_MANAGE, Scope(), "user", user_id)
    row = await store.get(tx, user_id)
    if row is None:
        raise not_found("user", user_id)
    return to_wire(User, row)


async def list_users(tx: Transaction, caller: Caller, cursor: str | None, limit: int) -> UserPage:
    caller.require(Permission.USER_MANAGE, Scope(), "user", "")
    rows, after = cut_page(await store.list_all(tx, decode_cursor(cursor), limit + 1), limit)
    return UserPage(items=[to_wire(User, row) for row in rows], next_cursor=after)


async def update_user(
    tx: Transaction, caller: Caller, user_id: str, body: UserUpdate, password_hash: str | None
) -> User:
    row = before = await _lock_user(tx, caller, user_id)
    if body.disabled is not None and body.disabled != row.disabled:
        row = await store.set_disabled(tx, user_id, body.disabled)
        await _require_admin_left(tx)
        await tx.audit("user.disable" if body.disabled else "user.enable", user_id)
        if body.disabled:
            await grants.end_of_user(tx, user_id, "the user was disabled")
    if password_hash is not None:
        row = await store.set_password(tx, user_id, password_hash, change_required=True)
        await tx.audit("user.reset_password", user_id)
    if row is not before:
        await _end_all(tx, user_id)
        await tx.changed(UserEvent.UPDATED, row)
    return to_wire(User, row)


async def delete_user(tx: Transaction, caller: Caller, user_id: str) -> User:
    row = await _lock_user(tx, caller, user_id)
    await _end_all(tx, user_id)
    await grants.end_of_user(tx, user_id, "the user was deleted")
    await ssh_keys.delete_of_user(tx, user_id)
    await store.delete(tx, user_id)
    await _require_admin_left(tx)
    await tx.changed(UserEvent.DELETED, replace(row, revision=row.revision + 1))
    await tx.audit("user.delete", user_id, detail={"email": row.email})
    return to_wire(User, row)


async def _lock_user(tx: Transaction, caller: Caller, user_id: str) -> UserRecord:
    caller.require(Permission.USER_MANAGE, Scope(), "user", user_id)
    await store.lock_platform_admins(tx)
    row = await store.lock(tx, user_id)
    if row is None:
        raise not_found("user", user_id)
    tx.match(row)
    return row


async def _end_all(tx: Transaction, user_id: str) -> None:
    await session_store.delete_of_user(tx, user_id)
    await access_store.end_of_principal(tx, user_id)


async def _require_admin_left(tx: Transaction) -> None:
    """After the change and under the lock: the refusal takes the change back."""
    if await store.count_platform_admins(tx) == 0:
        raise Refusal(Code.LAST_PLATFORM_ADMIN, "this is the last platform admin; make another one first")


# Memberships


async def create_membership(tx: Transaction, caller: Caller, body: MembershipCreate) -> Membership:
    if body.role in _PROJECT_ROLES:
        if body.project_id is None or body.tenant_id is not None:
            raise _wrong_scope(body.role, "needs project_id and no tenant_id")
    elif body.role == Role.TENANT_ADMIN:
        if body.tenant_id is None or body.project_id is not None:
            raise _wrong_scope(body.role, "needs tenant_id and no project_id")
    elif body.role == Role.APP_PUBLISHER:
        if body.app_slug is None or body.tenant_id is not None or body.project_id is not None:
            raise _wrong_scope(body.role, "needs app_slug, and neither tenant_id nor project_id")
    elif body.tenant_id is not None or body.project_id is not None:
        raise _wrong_scope(body.role, "belongs to the platform: give neither tenant_id nor project_id")
    if body.app_slug is not None and body.role != Role.APP_PUBLISHER:
        raise _wrong_scope(body.role, "is not about an app: give no app_slug")
    await _require_membership_scope(tx, caller, body.tenant_id, body.project_id, Permission.MEMBERSHIP_CREATE)
    if await store.get(tx, body.user_id) is None:
        raise not_found("user", body.user_id)
    row = await store.insert_membership(
        tx, ids.new_id(ids.MEMBERSHIP), body.user_id, body.role, body.tenant_id, body.project_id, body.app_slug
    )
    if row is None:
        raise Refusal(Code.NAME_TAKEN, "the user has this role here already")
    await tx.changed(MembershipEvent.CREATED, row, project_id=body.project_id)
    await tx.audit("membership.create", row.id, tenant_id=body.tenant_id, project_id=body.project_id)
    return to_wire(Membership, row)


async def _require_membership_scope(
    tx: Transaction, caller: Caller, tenant_id: str | None, project_id: str | None, permission: Permission
) -> None:
    if project_id is not None:
        await require_project(tx, caller, project_id, permission)
    elif tenant_id is not None:
        await get_tenant(tx, caller, tenant_id)
        # Who may make projects in a tenant may also say who else may.
        caller.require(Permission.PROJECT_CREATE, Scope(tenant_id=tenant_id), "tenant", tenant_id)
    else:
        caller.require(Permission.USER_MANAGE, Scope(), "user", "")


def _wrong_scope(role: Role, detail: str) -> Refusal:
    message = f"the role {role.value} {detail}"
    return Refusal(Code.INVALID_REQUEST, message, errors=[FieldError(pointer="/role", detail=message)])


async def list_memberships(
    tx: Transaction,
    caller: Caller,
    user_id: str | None,
    tenant_id: str | None,
    project_id: str | None,
    cursor: str | None,
    limit: int,
) -> MembershipPage:
    """Everybody sees their own; those who may give roles in a tenant or project see who has them."""
    if project_id is not None:
        await get_project(tx, caller, project_id)
    rows = await store.list_memberships(
        tx,
        user_id=user_id,
        tenant_id=tenant_id,
        project_id=project_id,
        seen_by=None if caller.is_platform_admin else caller.id,
        tenants=caller.tenants_with(Permission.MEMBERSHIP_CREATE),
        projects=caller.projects_with(Permission.MEMBERSHIP_CREATE),
        after=decode_cursor(cursor),
        limit=limit + 1,
    )
    rows, after = cut_page(rows, limit)
    return MembershipPage(items=[to_wire(Membership, row) for row in rows], next_cursor=after)


async def delete_membership(tx: Transaction, caller: Caller, membership_id: str) -> Membership:
    await store.lock_platform_admins(tx)
    row = await store.lock_membership(tx, membership_id)
    if row is None:
        raise not_found("membership", membership_id)
    scope = Scope(tenant_id=row.scope_tenant_id, project_id=row.project_id)
    if not caller.sees(scope):
        raise not_found("membership", membership_id, denied=True)
    await _require_membership_scope(tx, caller, row.tenant_id, row.project_id, Permission.MEMBERSHIP_DELETE)
    tx.match(row)
    await store.delete_membership(tx, membership_id)
    await access_store.end_of_principal(tx, row.user_id, row.project_id)
    await _end_grants(tx, row)
    if row.role == Role.PLATFORM_ADMIN:
        await _require_admin_left(tx)
    await tx.changed(MembershipEvent.DELETED, replace(row, revision=row.revision + 1), project_id=row.project_id)
    detail = {"user_id": row.user_id, "role": row.role}
    await tx.audit(
        "membership.delete", membership_id, tenant_id=row.tenant_id, project_id=row.project_id, detail=detail
    )
    return to_wire(Membership, row)


async def _end_grants(tx: Transaction, membership: ScopedMembership) -> None:
    """A grant is given in a project or tenant that one belongs to: it does not outlive that."""
    user_id, tenant_id, project_id = membership.user_id, membership.scope_tenant_id, membership.project_id
    if tenant_id is None:
        return
    if project_id is not None and await grant_store.has_role_in(tx, user_id, tenant_id):
        await grants.end_of_user(tx, user_id, "the person left the project", project_id=project_id)
    else:
        await grants.end_of_user(tx, user_id, "the person left the tenant", tenant_id=tenant_id)
