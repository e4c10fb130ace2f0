"""Tenants, projects, people, memberships and service accounts."""

import asyncio

from argon2 import PasswordHasher
from argon2.exceptions import Argon2Error
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key

from gpuaas_contract import ids
from gpuaas_contract.identity import (
    Membership,
    MembershipCreate,
    Project,
    ProjectCreate,
    ProjectPage,
    Role,
    ServiceAccount,
    ServiceAccountCreate,
    ServiceAccountPage,
    Tenant,
    TenantCreate,
    TenantPage,
    User,
    UserCreate,
    UserPage,
)
from gpuaas_contract.problems import Code, FieldError
from gpuaas_platform.domain.errors import Refusal, not_found
from gpuaas_platform.domain.policy import Caller, Permission, Scope
from gpuaas_platform.services.pages import cut_page, decode_cursor
from gpuaas_platform.storage import identity as store
from gpuaas_platform.storage.database import Database, Row, Transaction

MOST_PROJECTS = 10_000
_hasher = PasswordHasher()
# Verified against when the e-mail is unknown, so that the time of the answer tells nothing.
_NOBODY = _hasher.hash("nobody")


# Hashing takes 64 MiB and a core for a tenth of a second each: a few at a time, and never inside a transaction.
_hashing = asyncio.Semaphore(2)


async def hash_password(password: str) -> str:
    async with _hashing:
        return await asyncio.to_thread(_hasher.hash, password)


async def check_password(database: Database, correlation_id: str, email: str, password: str) -> Row:
    async with database.system_transaction(correlation_id) as tx:
        user = await store.get_user_by_email(tx, email.strip().lower())
    try:
        async with _hashing:
            await asyncio.to_thread(_hasher.verify, user["password_hash"] if user else _NOBODY, password)
    except Argon2Error:
        user = None
    if user is None or user["disabled"]:
        raise Refusal(Code.INVALID_CREDENTIALS, "this e-mail and password do not belong together")
    async with database.transaction(user["id"], correlation_id) as tx:
        await tx.audit("auth.login", user["id"])
    return user


async def create_first_admin(tx: Transaction, email: str, password_hash: str) -> bool:
    """Only while there is nobody: the file that it comes from stays on disk, and must not reset anything."""
    if await store.any_user(tx):
        return False
    user = await store.insert_user(tx, ids.new_id(ids.USER), email.lower(), password_hash)
    if user is None:
        return False
    await store.insert_membership(tx, ids.new_id(ids.MEMBERSHIP), user["id"], Role.PLATFORM_ADMIN, None, None)
    await tx.changed("user", user, "created")
    await tx.audit("user.create_first_admin", user["id"])
    return True


async def create_tenant(tx: Transaction, caller: Caller, body: TenantCreate) -> Tenant:
    caller.require(Permission.TENANT_CREATE, Scope(), "tenant", body.name)
    row = await store.insert_tenant(tx, ids.new_id(ids.TENANT), body.name, body.title or body.name)
    if row is None:
        raise Refusal(Code.NAME_TAKEN, f"a tenant named {body.name!r} exists already")
    await tx.changed("tenant", row, "created")
    await tx.audit("tenant.create", row["id"], tenant_id=row["id"])
    return Tenant.model_validate(row)


async def get_tenant(tx: Transaction, caller: Caller, tenant_id: str) -> Tenant:
    row = await store.get_tenant(tx, tenant_id)
    if row is None:
        raise not_found("tenant", tenant_id)
    caller.require(Permission.TENANT_READ, Scope(tenant_id=tenant_id), "tenant", tenant_id)
    return Tenant.model_validate(row)


async def list_tenants(tx: Transaction, caller: Caller, cursor: str | None, limit: int) -> TenantPage:
    seen = None if caller.is_platform_admin else sorted(caller.tenant_ids)
    rows, after = cut_page(await store.list_tenants(tx, seen, decode_cursor(cursor), limit + 1), limit)
    return TenantPage(items=[Tenant.model_validate(row) for row in rows], next_cursor=after)


async def create_project(tx: Transaction, caller: Caller, body: ProjectCreate) -> Project:
    await get_tenant(tx, caller, body.tenant_id)
    caller.require(Permission.PROJECT_CREATE, Scope(tenant_id=body.tenant_id), "tenant", body.tenant_id)
    row = await store.insert_project(tx, ids.new_id(ids.PROJECT), body.tenant_id, body.name, body.title or body.name)
    if row is None:
        raise Refusal(Code.NAME_TAKEN, f"the tenant has a project named {body.name!r} already")
    await tx.changed("project", row, "created", project_id=row["id"])
    await tx.audit("project.create", row["id"], project_id=row["id"])
    return Project.model_validate(row)


async def require_project(tx: Transaction, caller: Caller, project_id: str, permission: Permission) -> Scope:
    """The project's scope, where the caller has the permission in it."""
    row = await store.get_project(tx, project_id)
    if row is None:
        raise not_found("project", project_id)
    scope = Scope(tenant_id=row["tenant_id"], project_id=project_id)
    caller.require(permission, scope, "project", project_id)
    return scope


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
    rows = await store.list_projects(tx, caller.project_ids, caller.admin_tenant_ids, None, "", MOST_PROJECTS)
    scopes = {row["id"]: Scope(tenant_id=row["tenant_id"], project_id=row["id"]) for row in rows}
    return [id for id, scope in scopes.items() if caller.may(permission, scope)]


async def get_project(tx: Transaction, caller: Caller, project_id: str) -> Project:
    await require_project(tx, caller, project_id, Permission.PROJECT_READ)
    return Project.model_validate(await store.get_project(tx, project_id))


async def list_projects(
    tx: Transaction, caller: Caller, tenant_id: str | None, cursor: str | None, limit: int
) -> ProjectPage:
    seen = None if caller.is_platform_admin else caller.project_ids
    rows = await store.list_projects(tx, seen, caller.admin_tenant_ids, tenant_id, decode_cursor(cursor), limit + 1)
    rows, after = cut_page(rows, limit)
    return ProjectPage(items=[Project.model_validate(row) for row in rows], next_cursor=after)


async def create_user(tx: Transaction, caller: Caller, body: UserCreate, password_hash: str) -> User:
    caller.require(Permission.USER_MANAGE, Scope(), "user", body.email)
    row = await store.insert_user(tx, ids.new_id(ids.USER), body.email.lower(), password_hash)
    if row is None:
        raise Refusal(Code.NAME_TAKEN, f"a user with the e-mail {body.email!r} exists already")
    await tx.changed("user", row, "created")
    await tx.audit("user.create", row["id"])
    return User.model_validate(row)


async def list_users(tx: Transaction, caller: Caller, cursor: str | None, limit: int) -> UserPage:
    caller.require(Permission.USER_MANAGE, Scope(), "user", "")
    rows, after = cut_page(await store.list_users(tx, decode_cursor(cursor), limit + 1), limit)
    return UserPage(items=[User.model_validate(row) for row in rows], next_cursor=after)


_PROJECT_ROLES = {Role.PROJECT_ADMIN, Role.PROJECT_MEMBER, Role.PROJECT_VIEWER}


async def create_membership(tx: Transaction, caller: Caller, body: MembershipCreate) -> Membership:
    if body.role in _PROJECT_ROLES:
        if body.project_id is None or body.tenant_id is not None:
            raise _wrong_scope(body.role, "needs project_id and no tenant_id")
        await require_project(tx, caller, body.project_id, Permission.MEMBERSHIP_CREATE)
    elif body.role == Role.TENANT_ADMIN:
        if body.tenant_id is None or body.project_id is not None:
            raise _wrong_scope(body.role, "needs tenant_id and no project_id")
        await get_tenant(tx, caller, body.tenant_id)
        scope = Scope(tenant_id=body.tenant_id)
        caller.require(Permission.PROJECT_CREATE, scope, "tenant", body.tenant_id)
    else:
        if body.tenant_id is not None or body.project_id is not None:
            raise _wrong_scope(body.role, "belongs to the platform: give neither tenant_id nor project_id")
        caller.require(Permission.USER_MANAGE, Scope(), "user", body.user_id)
    if await store.get_user(tx, body.user_id) is None:
        raise not_found("user", body.user_id)
    row = await store.insert_membership(
        tx, ids.new_id(ids.MEMBERSHIP), body.user_id, body.role, body.tenant_id, body.project_id
    )
    if row is None:
        raise Refusal(Code.NAME_TAKEN, "the user has this role here already")
    await tx.changed("membership", row, "created", project_id=body.project_id)
    await tx.audit("membership.create", row["id"], tenant_id=body.tenant_id, project_id=body.project_id)
    return Membership.model_validate(row)


def _wrong_scope(role: Role, detail: str) -> Refusal:
    message = f"the role {role.value} {detail}"
    return Refusal(Code.INVALID_REQUEST, message, errors=[FieldError(pointer="/role", detail=message)])


def check_public_key(pem: str) -> None:
    try:
        key = load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        detail = "public_key_pem must be an ed25519 public key in PEM form"
        raise Refusal(Code.INVALID_REQUEST, detail, errors=[FieldError(pointer="/public_key_pem", detail=detail)])


async def create_service_account(tx: Transaction, caller: Caller, body: ServiceAccountCreate) -> ServiceAccount:
    await require_project(tx, caller, body.project_id, Permission.SERVICE_ACCOUNT_CREATE)
    check_public_key(body.public_key_pem)
    row = await store.insert_service_account(
        tx, ids.new_id(ids.SERVICE_ACCOUNT), body.project_id, body.name, body.app_slug, body.public_key_pem
    )
    if row is None:
        raise Refusal(Code.NAME_TAKEN, f"the project has a service account named {body.name!r} already")
    await tx.changed("service_account", row, "created", project_id=body.project_id)
    await tx.audit("service_account.create", row["id"], project_id=body.project_id)
    return ServiceAccount.model_validate(row)


async def list_service_accounts(
    tx: Transaction, caller: Caller, project_id: str | None, cursor: str | None, limit: int
) -> ServiceAccountPage:
    projects = await visible_projects(tx, caller, project_id, Permission.SERVICE_ACCOUNT_READ)
    rows = await store.list_service_accounts(tx, projects, decode_cursor(cursor), limit + 1)
    rows, after = cut_page(rows, limit)
    return ServiceAccountPage(items=[ServiceAccount.model_validate(row) for row in rows], next_cursor=after)
