"""Reconcile leases: at most one row for each instance."""

from gpuaas_platform.core.database import Transaction
from gpuaas_platform.instances.records import ReconcileLeaseRecord


async def claim(
    tx: Transaction, instance_id: str, holder: str, account_id: str, seconds: int
) -> ReconcileLeaseRecord | None:
    """Return None where somebody holds it."""
    return await tx.find(
        ReconcileLeaseRecord,
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


async def get(tx: Transaction, instance_id: str) -> ReconcileLeaseRecord | None:
    return await tx.find(
        ReconcileLeaseRecord,
        "SELECT *, expires_at <= now() AS expired FROM reconcile_leases WHERE instance_id = %(id)s",
        id=instance_id,
    )


async def lock(tx: Transaction, instance_id: str) -> ReconcileLeaseRecord | None:
    return await tx.find(
        ReconcileLeaseRecord,
        """SELECT *, expires_at <= now() AS expired FROM reconcile_leases WHERE instance_id = %(id)s FOR UPDATE""",
        id=instance_id,
    )


async def extend(tx: Transaction, instance_id: str, seconds: int) -> ReconcileLeaseRecord:
    return await tx.fetch(
        ReconcileLeaseRecord,
        """UPDATE reconcile_leases SET expires_at = now() + make_interval(secs => %(seconds)s)
           WHERE instance_id = %(id)s RETURNING *, false AS expired""",
        id=instance_id,
        seconds=seconds,
    )


async def delete(tx: Transaction, instance_id: str) -> None:
    await tx.run("DELETE FROM reconcile_leases WHERE instance_id = %(id)s", id=instance_id)
