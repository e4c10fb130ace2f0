"""Grants of people on machines, and the numbers that people have on all of them."""

from datetime import datetime

from gpuaas_platform.access.records import GrantRecord, GrantView, UnixUserRecord
from gpuaas_platform.allocations.records import AllocationRecord
from gpuaas_platform.core.database import Transaction

_SELECT = "SELECT g.*, a.name AS allocation_name FROM grants g JOIN allocations a ON a.id = g.allocation_id"
_LIVE = "g.status IN ('pending', 'active', 'failed')"


async def get_unix_user(tx: Transaction, user_id: str) -> UnixUserRecord | None:
    return await tx.find(UnixUserRecord, "SELECT * FROM unix_users WHERE user_id = %(user)s", user=user_id)


async def next_uid(tx: Transaction) -> int:
    row = await tx.one("SELECT nextval('unix_uids') AS uid")
    assert row is not None
    return int(row["uid"])


async def is_login_taken(tx: Transaction, login: str) -> bool:
    return await tx.one("SELECT 1 FROM unix_users WHERE login = %(login)s", login=login) is not None


async def insert_unix_user(tx: Transaction, user_id: str, login: str, uid: int) -> None:
    await tx.run(
        """INSERT INTO unix_users (user_id, login, uid) VALUES (%(user)s, %(login)s, %(uid)s)
           ON CONFLICT DO NOTHING""",
        user=user_id,
        login=login,
        uid=uid,
    )


async def is_person_anywhere(tx: Transaction, user_id: str) -> bool:
    """Whether a machine has the person, or is still being told that it has not."""
    row = await tx.one(
        """SELECT 1 FROM grants WHERE user_id = %(user)s AND status IN ('pending', 'active', 'failed', 'revoking')
           LIMIT 1""",
        user=user_id,
    )
    return row is not None


async def lock_logins(tx: Transaction) -> None:
    """Until the end of the transaction nobody else is given a name, or another one."""
    await tx.run("LOCK TABLE unix_users IN SHARE ROW EXCLUSIVE MODE")


async def rename_unix_user(tx: Transaction, user_id: str, login: str) -> UnixUserRecord:
    """The number stays: files on volumes and machines have it."""
    return await tx.fetch(
        UnixUserRecord,
        "UPDATE unix_users SET login = %(login)s WHERE user_id = %(user)s RETURNING *",
        user=user_id,
        login=login,
    )


async def has_role_in(tx: Transaction, user_id: str, tenant_id: str) -> bool:
    """In the tenant, in one of its projects, or above all of them."""
    row = await tx.one(
        """SELECT 1 FROM memberships m LEFT JOIN projects p ON p.id = m.project_id
           WHERE m.user_id = %(user)s
             AND (coalesce(m.tenant_id, p.tenant_id) = %(tenant)s OR m.role = 'platform_admin') LIMIT 1""",
        user=user_id,
        tenant=tenant_id,
    )
    return row is not None


async def insert(
    tx: Transaction,
    id: str,
    allocation: AllocationRecord,
    user_id: str,
    email: str,
    unix: UnixUserRecord,
    *,
    sudo: bool,
    remote_forwarding: bool,
    expires_at: datetime | None,
    instance_id: str | None = None,
    account_only: bool = False,
) -> GrantView | None:
    """None where the person has a live one on the machine."""
    inserted = await tx.one(
        """INSERT INTO grants (id, allocation_id, tenant_id, project_id, user_id, email, login, uid, sudo,
                               remote_forwarding, expires_at, granted_by, instance_id, account_only)
           VALUES (%(id)s, %(allocation)s, %(tenant)s, %(project)s, %(user)s, %(email)s, %(login)s, %(uid)s, %(sudo)s,
                   %(remote)s, %(expires)s, %(by)s, %(instance)s, %(account_only)s)
           ON CONFLICT DO NOTHING RETURNING id""",
        id=id,
        allocation=allocation.id,
        tenant=allocation.tenant_id,
        project=allocation.project_id,
        user=user_id,
        email=email,
        login=unix.login,
        uid=unix.uid,
        sudo=sudo,
        remote=remote_forwarding,
        expires=expires_at,
        by=tx.principal_id,
        instance=instance_id,
        account_only=account_only,
    )
    return None if inserted is None else await get(tx, id)


async def get(tx: Transaction, id: str) -> GrantView | None:
    return await tx.find(GrantView, _SELECT + " WHERE g.id = %(id)s", id=id)


async def get_usable(tx: Transaction, allocation_id: str, user_id: str) -> GrantView | None:
    """The live one that a person has on a machine; one that has expired is none, also before it was swept."""
    return await tx.find(
        GrantView,
        _SELECT
        + " WHERE g.allocation_id = %(allocation)s AND g.user_id = %(user)s AND "
        + _LIVE
        + " AND NOT g.account_only AND (g.expires_at IS NULL OR g.expires_at > now())",
        allocation=allocation_id,
        user=user_id,
    )


async def list_live(tx: Transaction, allocation_id: str) -> list[GrantView]:
    return await tx.fetch_all(
        GrantView,
        _SELECT + " WHERE g.allocation_id = %(allocation)s AND " + _LIVE + " ORDER BY g.id",
        allocation=allocation_id,
    )


async def list_of_allocation(
    tx: Transaction, allocation_id: str, user_id: str | None, after: str, limit: int
) -> list[GrantView]:
    return await tx.fetch_all(
        GrantView,
        _SELECT
        + """ WHERE g.allocation_id = %(allocation)s AND g.id > %(after)s
                AND (%(user)s::text IS NULL OR g.user_id = %(user)s) ORDER BY g.id LIMIT %(limit)s""",
        allocation=allocation_id,
        user=user_id,
        after=after,
        limit=limit,
    )


async def list_of_user(tx: Transaction, user_id: str, after: str, limit: int) -> list[GrantView]:
    """Live ones: those that ended are the machine's history, not the person's."""
    return await tx.fetch_all(
        GrantView,
        _SELECT
        + " WHERE g.user_id = %(user)s AND g.id > %(after)s AND NOT g.account_only AND "
        + _LIVE
        + " ORDER BY g.id LIMIT %(limit)s",
        user=user_id,
        after=after,
        limit=limit,
    )


async def list_live_of_user(
    tx: Transaction, user_id: str, *, project_id: str | None = None, tenant_id: str | None = None
) -> list[GrantView]:
    """Everywhere, in a project, or in a tenant; in the order in which machines are locked."""
    return await tx.fetch_all(
        GrantView,
        _SELECT
        + " WHERE g.user_id = %(user)s AND "
        + _LIVE
        + """ AND (%(project)s::text IS NULL OR g.project_id = %(project)s)
              AND (%(tenant)s::text IS NULL OR g.tenant_id = %(tenant)s) ORDER BY g.allocation_id""",
        user=user_id,
        project=project_id,
        tenant=tenant_id,
    )


async def list_expired(tx: Transaction) -> list[GrantView]:
    return await tx.fetch_all(
        GrantView, _SELECT + " WHERE " + _LIVE + " AND g.expires_at <= now() ORDER BY g.allocation_id LIMIT 100"
    )


async def list_stuck(tx: Transaction, seconds: int) -> list[str]:
    """List the allocations whose machine could not remove somebody, or not make somebody of an instance: those are
    asked again."""
    rows = await tx.all(
        """SELECT DISTINCT g.allocation_id FROM grants g JOIN node_tasks t ON t.id = g.task_id
           WHERE (g.status = 'revoking' OR g.status = 'failed' AND g.instance_id IS NOT NULL) AND t.state = 'failed'
             AND t.ended_at < now() - make_interval(secs => %(seconds)s) ORDER BY g.allocation_id LIMIT 100""",
        seconds=seconds,
    )
    return [row["allocation_id"] for row in rows]


async def set_status(tx: Transaction, id: str, status: str, reason: str = "", *, ended: bool = False) -> GrantRecord:
    return await tx.fetch(
        GrantRecord,
        """UPDATE grants SET status = %(status)s, reason = %(reason)s, revision = revision + 1, updated_at = now(),
               ended_at = CASE WHEN %(ended)s THEN coalesce(ended_at, now()) ELSE ended_at END
           WHERE id = %(id)s RETURNING *""",
        id=id,
        status=status,
        reason=reason,
        ended=ended,
    )


async def wait_for_task(tx: Transaction, allocation_id: str, task_id: str) -> None:
    """Let this task decide about all that the machine has not done yet."""
    await tx.run(
        """UPDATE grants SET task_id = %(task)s
           WHERE allocation_id = %(allocation)s AND status IN ('pending', 'failed', 'revoking')""",
        task=task_id,
        allocation=allocation_id,
    )


async def list_of_task(tx: Transaction, task_id: str) -> list[GrantRecord]:
    return await tx.fetch_all(
        GrantRecord, "SELECT * FROM grants WHERE task_id = %(task)s ORDER BY id FOR UPDATE", task=task_id
    )


# Leaving: the log-in has ended, and the processes are left to the app for a while.


async def let_leave(tx: Transaction, id: str, seconds: int) -> GrantRecord:
    return await tx.fetch(
        GrantRecord,
        "UPDATE grants SET leaving_until = now() + make_interval(secs => %(seconds)s) WHERE id = %(id)s RETURNING *",
        id=id,
        seconds=seconds,
    )


async def list_leaving(tx: Transaction, allocation_id: str) -> list[GrantRecord]:
    return await tx.fetch_all(
        GrantRecord,
        """SELECT * FROM grants WHERE allocation_id = %(allocation)s AND status = 'revoking' AND leaving_until > now()
           ORDER BY id""",
        allocation=allocation_id,
    )


async def list_left(tx: Transaction) -> list[str]:
    """List the allocations on which the time of somebody who left is over."""
    rows = await tx.all(
        "SELECT DISTINCT allocation_id FROM grants WHERE leaving_until <= now() ORDER BY allocation_id LIMIT 100"
    )
    return [row["allocation_id"] for row in rows]


async def end_leaving(tx: Transaction, allocation_id: str) -> None:
    await tx.run(
        "UPDATE grants SET leaving_until = NULL WHERE allocation_id = %(allocation)s AND leaving_until <= now()",
        allocation=allocation_id,
    )
