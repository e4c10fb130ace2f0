"""Logins of people."""

from gpuaas_platform.accounts.records import NewSession, SessionRecord, SessionView
from gpuaas_platform.core.database import Transaction


async def insert(tx: Transaction, session: NewSession) -> None:
    await tx.run(
        """INSERT INTO sessions (id, user_id, kind, client, secret_hash, epoch, idle_seconds, expires_at, ends_at)
           VALUES (%(id)s, %(user)s, %(kind)s, %(client)s, %(hash)s, %(epoch)s, %(idle)s,
                   now() + make_interval(secs => %(idle)s), now() + make_interval(secs => %(most)s))""",
        id=session.id,
        user=session.user_id,
        kind=session.kind,
        client=session.client,
        hash=session.secret_hash,
        epoch=session.epoch,
        idle=session.idle_seconds,
        most=session.most_seconds,
    )


async def touch(tx: Transaction, id: str) -> None:
    await tx.run(
        """UPDATE sessions SET last_used_at = now(),
                               expires_at = least(ends_at, now() + make_interval(secs => idle_seconds))
           WHERE id = %(id)s""",
        id=id,
    )


async def list_of_user(tx: Transaction, user_id: str, after: str, limit: int) -> list[SessionRecord]:
    return await tx.fetch_all(
        SessionRecord,
        """SELECT s.* FROM sessions s JOIN users u ON u.id = s.user_id AND u.epoch = s.epoch
           WHERE s.user_id = %(user)s AND s.id > %(after)s
             AND s.expires_at > now() ORDER BY s.id LIMIT %(limit)s""",
        user=user_id,
        after=after,
        limit=limit,
    )


async def get(tx: Transaction, id: str) -> SessionView | None:
    return await tx.find(
        SessionView,
        """SELECT s.*, u.email, u.password_change_required
           FROM sessions s JOIN users u ON u.id = s.user_id WHERE s.id = %(id)s""",
        id=id,
    )


async def delete(tx: Transaction, id: str, user_id: str) -> SessionRecord | None:
    """Also its refresh tokens, and with them every way back in."""
    return await tx.find(
        SessionRecord, "DELETE FROM sessions WHERE id = %(id)s AND user_id = %(user)s RETURNING *", id=id, user=user_id
    )


async def delete_of_user(tx: Transaction, user_id: str) -> None:
    await tx.run("DELETE FROM sessions WHERE user_id = %(user)s", user=user_id)


async def keep_only(tx: Transaction, user_id: str, session_id: str, epoch: int) -> None:
    """After a change of password: the browser that made it goes on in the new epoch, all other logins end."""
    await tx.run(
        "DELETE FROM sessions WHERE user_id = %(user)s AND (id <> %(id)s OR kind <> 'browser')",
        user=user_id,
        id=session_id,
    )
    await tx.run("UPDATE sessions SET epoch = %(epoch)s WHERE id = %(id)s", id=session_id, epoch=epoch)


async def sweep(tx: Transaction) -> int:
    return await tx.run("DELETE FROM sessions WHERE expires_at < now()")
