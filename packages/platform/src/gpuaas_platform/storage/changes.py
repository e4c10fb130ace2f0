"""The outbox, its sequencer, and reading of the feed; idempotency keys."""

from gpuaas_platform.storage.database import Row, Transaction
from gpuaas_platform.storage.wakeups import FEED

SEQUENCER_LOCK = 7_470_002


async def sequence(tx: Transaction, limit: int = 1_000) -> int:
    """Give committed changes their positions. Only one process at a time: others return at once.

    A row's `seq` was taken under the lock of its object, so that the changes of one object are in the
    order of its revisions.
    """
    lock = await tx.one("SELECT pg_try_advisory_xact_lock(%(key)s) AS held", key=SEQUENCER_LOCK)
    if lock is None or not lock["held"]:
        return 0
    count = await tx.run(
        """WITH head AS (SELECT coalesce(max(position), 0) AS position FROM changes),
                fresh AS (SELECT seq, row_number() OVER (ORDER BY seq) AS number FROM (
                    SELECT seq FROM changes WHERE position IS NULL ORDER BY seq LIMIT %(limit)s) unsequenced)
           UPDATE changes SET position = head.position + fresh.number FROM head, fresh
           WHERE changes.seq = fresh.seq""",
        limit=limit,
    )
    if count:
        await tx.notify(FEED)
    return count


async def head(tx: Transaction) -> int:
    row = await tx.one("SELECT coalesce(max(position), 0) AS position FROM changes")
    assert row is not None
    return int(row["position"])


async def read(
    tx: Transaction, since: int, project_ids: list[str] | None, instance_id: str | None, limit: int
) -> list[Row]:
    """`project_ids` is None for those who see everything."""
    return await tx.all(
        """SELECT * FROM changes WHERE position > %(since)s
             AND (%(projects)s::text[] IS NULL OR project_id = ANY(%(projects)s))
             AND (%(instance)s::text IS NULL OR instance_id = %(instance)s)
           ORDER BY position LIMIT %(limit)s""",
        since=since,
        projects=project_ids,
        instance=instance_id,
        limit=limit,
    )


async def try_lock_key(tx: Transaction, key: str) -> bool:
    """A try-lock, not a wait: a duplicate that arrives while the first is in flight is told so at once."""
    row = await tx.one(
        "SELECT pg_try_advisory_xact_lock(hashtextextended(%(key)s, 0)) AS held",
        key=f"{tx.principal_id}/{key}",
    )
    return row is not None and bool(row["held"])


async def get_answer(tx: Transaction, key: str) -> Row | None:
    return await tx.one(
        "SELECT * FROM idempotency_keys WHERE principal_id = %(principal)s AND key = %(key)s",
        principal=tx.principal_id,
        key=key,
    )


async def store_answer(tx: Transaction, key: str, fingerprint: str, status: int, body: str) -> None:
    await tx.run(
        """INSERT INTO idempotency_keys (principal_id, key, fingerprint, status, body)
           VALUES (%(principal)s, %(key)s, %(fingerprint)s, %(status)s, %(body)s)""",
        principal=tx.principal_id,
        key=key,
        fingerprint=fingerprint,
        status=status,
        body=body,
    )


async def sweep_keys(tx: Transaction, hours: int) -> int:
    return await tx.run(
        "DELETE FROM idempotency_keys WHERE created_at < now() - make_interval(hours => %(hours)s)",
        hours=hours,
    )
