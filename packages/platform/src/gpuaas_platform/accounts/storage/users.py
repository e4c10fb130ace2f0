"""Users and their memberships."""

from dataclasses import replace

from gpuaas_contract.events import MembershipEvent
from gpuaas_platform.accounts.records import MembershipRecord, MembershipView, ScopedMembership, UserRecord
from gpuaas_platform.core.database import Transaction

_ADMIN_LOCK = 7_470_004


async def insert(
    tx: Transaction, id: str, email: str, password_hash: str, password_change_required: bool
) -> UserRecord | None:
    return await tx.find(
        UserRecord,
        """INSERT INTO users (id, email, password_hash, password_change_required)
           VALUES (%(id)s, %(email)s, %(hash)s, %(change)s) ON CONFLICT DO NOTHING RETURNING *""",
        id=id,
        email=email,
        hash=password_hash,
        change=password_change_required,
    )


async def any_user(tx: Transaction) -> bool:
    return await tx.one("SELECT 1 FROM users LIMIT 1") is not None


async def get(tx: Transaction, id: str) -> UserRecord | None:
    return await tx.find(UserRecord, "SELECT * FROM users WHERE id = %(id)s", id=id)


async def lock(tx: Transaction, id: str) -> UserRecord | None:
    return await tx.find(UserRecord, "SELECT * FROM users WHERE id = %(id)s FOR UPDATE", id=id)


async def get_by_email(tx: Transaction, email: str) -> UserRecord | None:
    return await tx.find(UserRecord, "SELECT * FROM users WHERE email = %(email)s", email=email)


async def list_all(tx: Transaction, after: str, limit: int) -> list[UserRecord]:
    return await tx.fetch_all(
        UserRecord, "SELECT * FROM users WHERE id > %(after)s ORDER BY id LIMIT %(limit)s", after=after, limit=limit
    )


async def set_disabled(tx: Transaction, id: str, disabled: bool) -> UserRecord:
    """The epoch grows either way: what was withdrawn once does not come back to life."""
    return await tx.fetch(
        UserRecord,
        """UPDATE users SET disabled = %(disabled)s, epoch = epoch + 1, revision = revision + 1, updated_at = now()
           WHERE id = %(id)s RETURNING *""",
        id=id,
        disabled=disabled,
    )


async def set_password(tx: Transaction, id: str, password_hash: str, change_required: bool) -> UserRecord:
    return await tx.fetch(
        UserRecord,
        """UPDATE users SET password_hash = %(hash)s, password_change_required = %(change)s, epoch = epoch + 1,
                            revision = revision + 1, updated_at = now()
           WHERE id = %(id)s RETURNING *""",
        id=id,
        hash=password_hash,
        change=change_required,
    )


async def delete(tx: Transaction, id: str) -> None:
    await _tell_deleted(
        tx, await tx.fetch_all(MembershipRecord, "DELETE FROM memberships WHERE user_id = %(id)s RETURNING *", id=id)
    )
    await tx.run("DELETE FROM users WHERE id = %(id)s", id=id)


async def lock_platform_admins(tx: Transaction) -> None:
    """Before anything that could leave the platform without an administrator: two of those must not cross."""
    await tx.run("SELECT pg_advisory_xact_lock(%(key)s)", key=_ADMIN_LOCK)


async def count_platform_admins(tx: Transaction) -> int:
    """Those who can act."""
    row = await tx.one(
        """SELECT count(*) AS number FROM users u
           WHERE NOT u.disabled AND EXISTS (
               SELECT 1 FROM memberships m WHERE m.user_id = u.id AND m.role = 'platform_admin')"""
    )
    assert row is not None
    return int(row["number"])


async def insert_membership(
    tx: Transaction,
    id: str,
    user_id: str,
    role: str,
    tenant_id: str | None,
    project_id: str | None,
    app_slug: str | None = None,
) -> MembershipRecord | None:
    return await tx.find(
        MembershipRecord,
        """INSERT INTO memberships (id, user_id, role, tenant_id, project_id, app_slug)
           VALUES (%(id)s, %(user_id)s, %(role)s, %(tenant_id)s, %(project_id)s, %(app_slug)s)
           ON CONFLICT DO NOTHING RETURNING *""",
        id=id,
        user_id=user_id,
        role=role,
        tenant_id=tenant_id,
        project_id=project_id,
        app_slug=app_slug,
    )


async def lock_membership(tx: Transaction, id: str) -> ScopedMembership | None:
    return await tx.find(
        ScopedMembership,
        """SELECT m.*, u.email AS user_email, coalesce(m.tenant_id, p.tenant_id) AS scope_tenant_id
           FROM memberships m JOIN users u ON u.id = m.user_id LEFT JOIN projects p ON p.id = m.project_id
           WHERE m.id = %(id)s FOR UPDATE OF m""",
        id=id,
    )


async def list_memberships(
    tx: Transaction,
    *,
    user_id: str | None,
    tenant_id: str | None,
    project_id: str | None,
    seen_by: str | None,
    tenants: list[str],
    projects: list[str],
    after: str,
    limit: int,
) -> list[MembershipView]:
    """`seen_by` is None for those who see all; others see their own, and those of what they administer."""
    return await tx.fetch_all(
        MembershipView,
        """SELECT m.*, u.email AS user_email
           FROM memberships m JOIN users u ON u.id = m.user_id LEFT JOIN projects p ON p.id = m.project_id
           WHERE m.id > %(after)s
             AND (%(user)s::text IS NULL OR m.user_id = %(user)s)
             AND (%(tenant)s::text IS NULL OR coalesce(m.tenant_id, p.tenant_id) = %(tenant)s)
             AND (%(project)s::text IS NULL OR m.project_id = %(project)s)
             AND (%(seen_by)s::text IS NULL OR m.user_id = %(seen_by)s OR m.project_id = ANY(%(projects)s::text[])
                  OR coalesce(m.tenant_id, p.tenant_id) = ANY(%(tenants)s::text[]))
           ORDER BY m.id LIMIT %(limit)s""",
        user=user_id,
        tenant=tenant_id,
        project=project_id,
        seen_by=seen_by,
        tenants=tenants,
        projects=projects,
        after=after,
        limit=limit,
    )


async def delete_membership(tx: Transaction, id: str) -> None:
    await tx.run("DELETE FROM memberships WHERE id = %(id)s", id=id)


async def delete_memberships_in(tx: Transaction, tenant_id: str | None, project_id: str | None) -> None:
    await _tell_deleted(
        tx,
        await tx.fetch_all(
            MembershipRecord,
            "DELETE FROM memberships WHERE tenant_id = %(tenant)s OR project_id = %(project)s RETURNING *",
            tenant=tenant_id,
            project=project_id,
        ),
    )


async def _tell_deleted(tx: Transaction, memberships: list[MembershipRecord]) -> None:
    """Those that end with something else are changes of their own, too."""
    for row in memberships:
        await tx.changed(MembershipEvent.DELETED, replace(row, revision=row.revision + 1))
