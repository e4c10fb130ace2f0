"""The outbox, its sequencer, and reading of the feed; idempotency keys."""

from dataclasses import dataclass

from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.records import from_document
from gpuaas_platform.core.wakeups import FEED
from gpuaas_platform.feed.records import ChangeFilter, ChangeRecord

SEQUENCER_LOCK = 7_470_002
SEQUENCER_BATCH = 1_000

# The head has a row of its own: once retention has deleted every row, the rows alone would begin at 1 again.
_HEAD = """greatest((SELECT position FROM feed_marks WHERE name = 'head'),
                    (SELECT coalesce(max(position), 0) FROM changes))"""


_LOCK = "SELECT pg_try_advisory_xact_lock(%(key)s)"
_SEQUENCE = f"""
    WITH head AS (SELECT {_HEAD} AS position),
         fresh AS (SELECT seq, row_number() OVER (ORDER BY seq) AS number FROM (
             SELECT seq FROM changes WHERE position IS NULL
               AND EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND granted AND pid = pg_backend_pid()
                             AND classid = 0 AND objid = %(key)s AND objsubid = 1)
             ORDER BY seq LIMIT %(limit)s) unsequenced),
         marked AS (UPDATE feed_marks SET position = head.position + (SELECT count(*) FROM fresh) FROM head
                    WHERE name = 'head' AND EXISTS (SELECT FROM fresh)),
         placed AS (UPDATE changes SET position = head.position + fresh.number FROM head, fresh
                    WHERE changes.seq = fresh.seq RETURNING 1)
    SELECT count(*) AS count, CASE WHEN count(*) > 0 THEN pg_notify('{FEED}', '') END FROM placed
"""  # noqa: S608 - constants


async def sequence(tx: Transaction, limit: int = SEQUENCER_BATCH) -> int:
    """Give committed changes their positions. Only one process at a time: others find nothing to do.

    A row's `seq` was taken under the lock of its object, so that the changes of one object are in the
    order of its revisions. The lock and the work are two statements, so that the work sees all that the last
    holder has committed; both go out together, since this is on the way of every change to its readers.
    """
    row = await tx.one_trip((_LOCK, {"key": SEQUENCER_LOCK}), (_SEQUENCE, {"key": SEQUENCER_LOCK, "limit": limit}))
    assert row is not None
    return int(row["count"])


@dataclass(frozen=True, slots=True)
class Window:
    """A part of the feed as it was at one moment."""

    changes: list[ChangeRecord]
    end: int
    """Up to here, `changes` holds all there is to read."""
    head: int
    swept: int
    """Changes up to this position are not kept any more."""


async def marks(tx: Transaction) -> tuple[int, int]:
    """The position of the newest change, and that of the newest one that retention has deleted."""
    row = await tx.one(
        f"SELECT {_HEAD} AS head, (SELECT position FROM feed_marks WHERE name = 'swept') AS swept"  # noqa: S608
    )
    assert row is not None
    return int(row["head"]), int(row["swept"])


async def read(
    tx: Transaction,
    since: int,
    tenant_ids: list[str] | None,
    open_nouns: list[str],
    filters: ChangeFilter,
    *,
    limit: int,
    reach: int,
) -> Window:
    """Read the changes behind `since`, looking at no more than `reach` positions.

    `tenant_ids` is None for those who see every tenant; `open_nouns` are those that belong to none. One
    statement, so one moment: what is swept afterwards is noticed by the next read."""
    found = await tx.all(
        f"""WITH marks AS MATERIALIZED (
                SELECT {_HEAD} AS head, (SELECT position FROM feed_marks WHERE name = 'swept') AS swept)
            SELECT marks.head, marks.swept, found.* FROM marks LEFT JOIN LATERAL (
                SELECT * FROM changes WHERE position > %(since)s AND position <= %(since)s + %(reach)s
                  AND (%(tenants)s::text[] IS NULL OR tenant_id = ANY(%(tenants)s) OR noun = ANY(%(open)s))
                  AND (%(nouns)s::text[] IS NULL OR noun = ANY(%(nouns)s))
                  AND (%(tenant)s::text IS NULL OR tenant_id = %(tenant)s)
                  AND (%(project)s::text IS NULL OR project_id = %(project)s)
                  AND (%(instance)s::text IS NULL OR instance_id = %(instance)s)
                ORDER BY position LIMIT %(limit)s) found ON true
            ORDER BY found.position""",  # noqa: S608 - a constant
        since=since,
        reach=reach,
        tenants=tenant_ids,
        open=open_nouns,
        nouns=sorted(filters.nouns) or None,
        tenant=filters.tenant_id,
        project=filters.project_id,
        instance=filters.instance_id,
        limit=limit,
    )
    head, swept = int(found[0]["head"]), int(found[0]["swept"])
    changes = [from_document(ChangeRecord, row) for row in found if row["position"] is not None]
    end = changes[-1].position if len(changes) == limit else min(since + reach, head)
    return Window(changes, end, head, swept)


async def sweep_changes(tx: Transaction, hours: float, batch: int = 5_000) -> int:
    """Delete the oldest changes that are past their time: always the beginning of the feed, never its middle."""
    mark = await tx.one("SELECT position FROM feed_marks WHERE name = 'swept' FOR UPDATE SKIP LOCKED")
    if mark is None:
        return 0
    row = await tx.one(
        """WITH oldest AS (SELECT position, at < now() - make_interval(secs => %(hours)s * 3600) AS past
                           FROM changes WHERE position > %(swept)s ORDER BY position LIMIT %(batch)s)
           SELECT coalesce((SELECT min(position) - 1 FROM oldest WHERE NOT past), max(position)) AS last FROM oldest""",
        hours=hours,
        swept=mark["position"],
        batch=batch,
    )
    if row is None or row["last"] is None or row["last"] <= mark["position"]:
        return 0
    await tx.run("UPDATE feed_marks SET position = %(last)s WHERE name = 'swept'", last=row["last"])
    await tx.notify(FEED)
    return await tx.run("DELETE FROM changes WHERE position <= %(last)s", last=row["last"])
