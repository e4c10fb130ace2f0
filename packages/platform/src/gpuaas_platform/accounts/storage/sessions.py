"""Logins of people."""

from gpuaas_platform.core.database import Row, Transaction


async def insert(
    tx: Transaction,
    id: str,
    user_id: str,
    epoch: int,
    kind: str,
    client: str,
    *,
    idle_seconds: int,
    most_seconds: int,
    secret_hash: str | None = None,
) -> Row:
    row = await tx.one(
        """INSERT INTO sessions (id, user_id, kind, client, secret_hash, epoch, idle_seconds, expires_at, ends_at)
           VALUES (%(id)s, %(user)s, %(kind)s, %(client)s, %(hash)s, %(epoch)s, %(idle)s,
                   now() + make_interval(secs => %(idle)s), now() + make_interval(secs => %(most)s))
           RETURNING *""",
        id=id,
        user=user_id,
        kind=kind,
        client=client,
        hash=secret_hash,
        epoch=epoch,
        idle=idle_seconds,
        most=most_seconds,
    )
    assert row is not None
    return row


async def touch(tx: Transaction, id: str) -> None:
    await tx.run(
        """UPDATE sessions SET last_used_at = now(),
                               expires_at = least(ends_at, now() + make_interval(secs => idle_seconds))
           WHERE id = %(id)s""",
        id=id,
    )


async def list_of_user(tx: Transaction, user_id: str, after: str, limit: int) -> list[Row]:
    return await tx.all(
        """SELECT s.* FROM sessions s JOIN users u ON u.id = s.user_id AND u.epoch = s.epoch
           WHERE s.user_id = %(user)s AND s.id > %(after)s
             AND s.expires_at > now() ORDER BY s.id LIMIT %(limit)s""",
        user=user_id,
        after=after,
        limit=limit,
    )


async def get(tx: Transaction, id: str) -> Row | None:
    return await tx.one(
        """SELECT s.*, u.email, u.password_change_required
           FROM sessions s JOIN users u ON u.id = s.user_id WHERE s.id = %(id)s""",
        id=id,
    )


async def delete(tx: Transaction, id: str, user_id: str) -> Row | None:
    """Also its refresh tokens, and with them every way back in."""
    return await tx.one(
        "DELETE FROM sessions WHERE id = %(id)s AND user_id = %(user)s RETURNING *", id=id, user=user_id
    )


async def delete_of_user(tx: Transaction, user_id: str) -> None:
    await tx.run("DELETE FROM sessions WHERE user_id = %(user)s", user=user_id)


async def keep_only(tx: Transaction, user_id: str, session_id: str, epoch: int) -> None:
    """After a change of password: the login that made it goes on in the new epoch, all others end."""
    await tx.run("DELETE FROM sessions WHERE user_id = %(user)s AND id <> %(id)s", user=user_id, id=session_id)
    await tx.run("UPDATE sessions SET epoch = %(epoch)s WHERE id = %(id)s", id=session_id, epoch=epoch)


async def sweep(tx: Transaction) -> int:
    return await tx.run("DELETE FROM sessions WHERE expires_at < now()")
