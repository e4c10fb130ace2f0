"""Used assertions, device authorizations, refresh tokens."""

from datetime import datetime

from gpuaas_platform.core.database import Transaction
from gpuaas_platform.identity.records import DeviceAuthorizationRecord, PolledDevice, RefreshTokenView


async def use_assertion(tx: Transaction, id: str, expires_at: datetime) -> bool:
    """Whether this is the first time."""
    return (
        await tx.run(
            "INSERT INTO used_assertions (id, expires_at) VALUES (%(id)s, %(expires)s) ON CONFLICT DO NOTHING",
            id=id,
            expires=expires_at,
        )
        == 1
    )


async def insert_device(
    tx: Transaction,
    id: str,
    device_code_hash: str,
    user_code: str,
    client_id: str,
    address: str,
    *,
    seconds: int,
    poll: int,
) -> DeviceAuthorizationRecord | None:
    return await tx.find(
        DeviceAuthorizationRecord,
        """INSERT INTO device_authorizations
             (id, device_code_hash, user_code, client_id, address, poll_seconds, expires_at)
           VALUES (%(id)s, %(hash)s, %(user_code)s, %(client)s, %(address)s, %(poll)s,
                   now() + make_interval(secs => %(seconds)s)) ON CONFLICT DO NOTHING RETURNING *, false AS expired""",
        id=id,
        hash=device_code_hash,
        user_code=user_code,
        client=client_id,
        address=address,
        poll=poll,
        seconds=seconds,
    )


_DEVICE_BY_USER_CODE = "SELECT *, expires_at <= now() AS expired FROM device_authorizations WHERE user_code = %(code)s"


async def get_device_by_user_code(tx: Transaction, user_code: str) -> DeviceAuthorizationRecord | None:
    """Also one that was used or has expired: for a while, whoever types its code is told so."""
    return await tx.find(DeviceAuthorizationRecord, _DEVICE_BY_USER_CODE, code=user_code)


async def lock_device_by_user_code(tx: Transaction, user_code: str) -> DeviceAuthorizationRecord | None:
    return await tx.find(DeviceAuthorizationRecord, _DEVICE_BY_USER_CODE + " FOR UPDATE", code=user_code)


async def decide_device(tx: Transaction, id: str, status: str, user_id: str) -> DeviceAuthorizationRecord:
    return await tx.fetch(
        DeviceAuthorizationRecord,
        """UPDATE device_authorizations SET status = %(status)s, user_id = %(user)s, revision = revision + 1,
                  user_epoch = (SELECT epoch FROM users WHERE id = %(user)s)
           WHERE id = %(id)s RETURNING *, false AS expired""",
        id=id,
        status=status,
        user=user_id,
    )


async def lock_device(tx: Transaction, device_code_hash: str) -> PolledDevice | None:
    return await tx.find(
        PolledDevice,
        """SELECT d.*, d.expires_at <= now() AS expired,
                  coalesce(d.polled_at + make_interval(secs => d.poll_seconds) > now(), false) AS too_soon,
                  u.epoch, u.email,
                  coalesce(u.disabled, true) OR coalesce(d.user_epoch <> u.epoch, false) AS user_gone
           FROM device_authorizations d LEFT JOIN users u ON u.id = d.user_id
           WHERE d.device_code_hash = %(hash)s FOR UPDATE OF d""",
        hash=device_code_hash,
    )


async def device_was_polled(tx: Transaction, id: str, *, slower_by: int) -> None:
    await tx.run(
        "UPDATE device_authorizations SET polled_at = now(), poll_seconds = poll_seconds + %(more)s WHERE id = %(id)s",
        id=id,
        more=slower_by,
    )


async def use_device(tx: Transaction, id: str) -> bool:
    """Whether this is the first time. Nobody finds the row by its device code from then on, only by its user code."""
    statement = """UPDATE device_authorizations SET used_at = now(), device_code_hash = 'used/' || id
                   WHERE id = %(id)s AND used_at IS NULL"""
    return await tx.run(statement, id=id) == 1


async def insert_refresh_token(tx: Transaction, token_hash: str, session_id: str) -> None:
    await tx.run(
        "INSERT INTO refresh_tokens (token_hash, session_id) VALUES (%(hash)s, %(session)s)",
        hash=token_hash,
        session=session_id,
    )


async def lock_refresh_token(tx: Transaction, token_hash: str) -> RefreshTokenView | None:
    return await tx.find(
        RefreshTokenView,
        """SELECT extract(epoch FROM now() - r.used_at)::float AS used_seconds_ago,
                  s.id AS session_id, s.client, s.user_id, u.epoch,
                  s.epoch = u.epoch AND NOT u.disabled AND s.expires_at > now() AS live
           FROM refresh_tokens r JOIN sessions s ON s.id = r.session_id JOIN users u ON u.id = s.user_id
           WHERE r.token_hash = %(hash)s FOR UPDATE OF r, s""",
        hash=token_hash,
    )


async def use_refresh_token(tx: Transaction, token_hash: str) -> None:
    await tx.run("UPDATE refresh_tokens SET used_at = now() WHERE token_hash = %(hash)s", hash=token_hash)


async def sweep(tx: Transaction) -> None:
    # A while longer than they live: a late poll hears that its code has expired.
    await tx.run("DELETE FROM device_authorizations WHERE expires_at < now() - interval '10 minutes'")
    await tx.run("DELETE FROM used_assertions WHERE expires_at < now() - interval '1 minute'")
