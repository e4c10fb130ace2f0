"""Reconcile leases: at most one row for each instance."""

from gpuaas_platform.core.database import Row, Transaction


async def claim(tx: Transaction, instance_id: str, holder: str, account_id: str, seconds: int) -> Row | None:
    """None where somebody holds it."""
    return await tx.one(
        """INSERT INTO reconcile_leases (instance_id, holder, account_id, fencing_token, expires_at)
           VALUES (%(instance)s, %(holder)s, %(account)s, nextval('fencing_token'),
                   now() + make_interval(secs => %(seconds)s))
           ON CONFLICT (instance_id) DO UPDATE SET holder = excluded.holder, account_id = excluded.account_id,
               fencing_token = excluded.fencing_token, claimed_at = now(), expires_at = excluded.expires_at
           WHERE reconcile_leases.expires_at <= now()
           RETURNING *, false AS expired""",
        instance=instance_id,
        holder=holder,
        account=account_id,
        seconds=seconds,
    )


async def get(tx: Transaction, instance_id: str) -> Row | None:
    return await tx.one(
        "SELECT *, expires_at <= now() AS expired FROM reconcile_leases WHERE instance_id = %(id)s", id=instance_id
    )


async def lock(tx: Transaction, instance_id: str) -> Row | None:
    return await tx.one(
        """SELECT *, expires_at <= now() AS expired FROM reconcile_leases WHERE instance_id = %(id)s FOR UPDATE""",
        id=instance_id,
    )


async def extend(tx: Transaction, instance_id: str, seconds: int) -> Row:
    row = await tx.one(
        """UPDATE reconcile_leases SET expires_at = now() + make_interval(secs => %(seconds)s)
           WHERE instance_id = %(id)s RETURNING *, false AS expired""",
        id=instance_id,
        seconds=seconds,
    )
    assert row is not None
    return row


async def delete(tx: Transaction, instance_id: str) -> None:
    await tx.run("DELETE FROM reconcile_leases WHERE instance_id = %(id)s", id=instance_id)
