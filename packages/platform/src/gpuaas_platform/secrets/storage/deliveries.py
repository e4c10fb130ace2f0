"""Deliveries of secrets: wrapping → ready → used, or void. Of a wrapping token only the hash is here."""

from gpuaas_platform.core.database import Transaction
from gpuaas_platform.secrets.records import DeliveryState, SecretDeliveryRecord, SecretDeliveryView


async def insert(tx: Transaction, id: str, owner_id: str, version: int, operation_id: str, fencing_token: int) -> None:
    await tx.run(
        """INSERT INTO secret_deliveries (id, owner_id, version, operation_id, fencing_token, principal_id)
           VALUES (%(id)s, %(owner)s, %(version)s, %(operation)s, %(token)s, %(principal)s)""",
        id=id,
        owner=owner_id,
        version=version,
        operation=operation_id,
        token=fencing_token,
        principal=tx.principal_id,
    )


async def get(tx: Transaction, id: str) -> SecretDeliveryView | None:
    return await tx.find(
        SecretDeliveryView,
        """SELECT d.*, d.expires_at <= now() AS expired, v.state AS version_state, o.project_id, o.app_slug, p.tenant_id
           FROM secret_deliveries d JOIN secret_versions v ON v.owner_id = d.owner_id AND v.version = d.version
           JOIN operations o ON o.id = d.operation_id JOIN projects p ON p.id = o.project_id WHERE d.id = %(id)s""",
        id=id,
    )


async def lock(tx: Transaction, id: str) -> SecretDeliveryView | None:
    await tx.one("SELECT 1 FROM secret_deliveries WHERE id = %(id)s FOR UPDATE", id=id)
    return await get(tx, id)


async def was_used(tx: Transaction, owner_id: str, version: int, fencing_token: int) -> bool:
    row = await tx.one(
        """SELECT 1 FROM secret_deliveries WHERE owner_id = %(owner)s AND version = %(version)s
             AND fencing_token = %(token)s AND state = 'used' LIMIT 1""",
        owner=owner_id,
        version=version,
        token=fencing_token,
    )
    return row is not None


async def void_unused(tx: Transaction, owner_id: str, version: int, fencing_token: int) -> None:
    await tx.run(
        """UPDATE secret_deliveries SET state = 'void' WHERE owner_id = %(owner)s AND version = %(version)s
             AND fencing_token = %(token)s AND state IN ('wrapping', 'ready')""",
        owner=owner_id,
        version=version,
        token=fencing_token,
    )


async def set_ready(tx: Transaction, id: str, token_hash: str, seconds: int) -> SecretDeliveryRecord | None:
    """Return None where a later request made this one void."""
    return await tx.find(
        SecretDeliveryRecord,
        """UPDATE secret_deliveries SET state = 'ready', token_hash = %(hash)s,
               expires_at = now() + make_interval(secs => %(seconds)s)
           WHERE id = %(id)s AND state = 'wrapping' RETURNING *""",
        id=id,
        hash=token_hash,
        seconds=seconds,
    )


async def set_state(tx: Transaction, id: str, state: DeliveryState, *, expected: DeliveryState) -> None:
    await tx.run(
        "UPDATE secret_deliveries SET state = %(state)s WHERE id = %(id)s AND state = %(expected)s",
        id=id,
        state=state,
        expected=expected,
    )


async def sweep(tx: Transaction, hours: int) -> int:
    """Leases end long before that; the audit trail keeps what happened."""
    return await tx.run(
        "DELETE FROM secret_deliveries WHERE created_at < now() - make_interval(hours => %(hours)s)", hours=hours
    )
