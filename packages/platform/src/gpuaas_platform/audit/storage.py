"""The audit trail and its sealed batches."""

from dataclasses import asdict

from gpuaas_platform.audit.records import AuditBatchRecord, AuditEntryRecord, AuditFilter, SealedEntryRecord
from gpuaas_platform.core.database import Transaction

SEAL_LOCK = 7_470_003


async def list_entries(
    tx: Transaction, chain: str | None, project_id: str | None, only: AuditFilter, after: str, limit: int
) -> list[AuditEntryRecord]:
    return await tx.fetch_all(
        AuditEntryRecord,
        """SELECT * FROM audit_entries WHERE id > %(after)s
             AND (%(chain)s::text IS NULL OR chain = %(chain)s)
             AND (%(project)s::text IS NULL OR project_id = %(project)s)
             AND (%(action)s::text IS NULL OR starts_with(action, %(action)s))
             AND (%(principal_id)s::text IS NULL OR principal_id = %(principal_id)s)
             AND (%(target)s::text IS NULL OR target = %(target)s)
             AND (%(outcome)s::text IS NULL OR outcome = %(outcome)s)
             AND (%(correlation_id)s::text IS NULL OR correlation_id = %(correlation_id)s)
           ORDER BY id LIMIT %(limit)s""",
        chain=chain,
        project=project_id,
        after=after,
        limit=limit,
        **asdict(only),
    )


async def list_sealed(tx: Transaction, chain: str, after_position: int, limit: int) -> list[SealedEntryRecord]:
    return await tx.fetch_all(
        SealedEntryRecord,
        """SELECT * FROM audit_entries WHERE chain = %(chain)s AND position > %(after)s
           ORDER BY position LIMIT %(limit)s""",
        chain=chain,
        after=after_position,
        limit=limit,
    )


async def lock_unsealed(tx: Transaction, limit: int) -> list[AuditEntryRecord]:
    """Entries that wait for their place, oldest first; nothing where another process is sealing."""
    lock = await tx.one("SELECT pg_try_advisory_xact_lock(%(key)s) AS held", key=SEAL_LOCK)
    if lock is None or not lock["held"]:
        return []
    return await tx.fetch_all(
        AuditEntryRecord, "SELECT * FROM audit_entries WHERE position IS NULL ORDER BY seq LIMIT %(limit)s", limit=limit
    )


async def last_batch(tx: Transaction, chain: str) -> AuditBatchRecord | None:
    return await tx.find(
        AuditBatchRecord,
        "SELECT * FROM audit_batches WHERE chain = %(chain)s ORDER BY number DESC LIMIT 1",
        chain=chain,
    )


async def seal(
    tx: Transaction, chain: str, number: int, first: int, last: int, hash: str, ids: list[str], form: int
) -> None:
    await tx.run(
        """UPDATE audit_entries e SET position = %(first)s + o.number - 1, batch = %(number)s, form = %(form)s
           FROM unnest(%(ids)s::text[]) WITH ORDINALITY AS o(id, number) WHERE e.id = o.id""",
        first=first,
        number=number,
        ids=ids,
        form=form,
    )
    await tx.run(
        """INSERT INTO audit_batches (chain, number, first_position, last_position, hash)
           VALUES (%(chain)s, %(number)s, %(first)s, %(last)s, %(hash)s)""",
        chain=chain,
        number=number,
        first=first,
        last=last,
        hash=hash,
    )


async def list_batches(tx: Transaction, chain: str, after_number: int, limit: int) -> list[AuditBatchRecord]:
    return await tx.fetch_all(
        AuditBatchRecord,
        """SELECT * FROM audit_batches WHERE chain = %(chain)s AND number > %(after)s
           ORDER BY number LIMIT %(limit)s""",
        chain=chain,
        after=after_number,
        limit=limit,
    )


async def get_batch(tx: Transaction, chain: str, number: int) -> AuditBatchRecord | None:
    return await tx.find(
        AuditBatchRecord,
        "SELECT * FROM audit_batches WHERE chain = %(chain)s AND number = %(number)s",
        chain=chain,
        number=number,
    )


async def list_without_checkpoint(tx: Transaction) -> list[AuditBatchRecord]:
    """The newest batch of every chain whose newest batch has no checkpoint yet."""
    return await tx.fetch_all(
        AuditBatchRecord,
        """SELECT DISTINCT ON (chain) * FROM audit_batches WHERE NOT checkpointed ORDER BY chain, number DESC""",
    )


async def mark_checkpointed(tx: Transaction, chain: str, number: int) -> None:
    await tx.run(
        """UPDATE audit_batches SET checkpointed = true
           WHERE chain = %(chain)s AND number <= %(number)s AND NOT checkpointed""",
        chain=chain,
        number=number,
    )
