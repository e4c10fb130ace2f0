"""How much committed work still waits for the loops."""

from gpuaas_platform.core.database import Row, Transaction


async def read(tx: Transaction) -> Row:
    row = await tx.one(
        """SELECT (SELECT count(*) FROM changes WHERE position IS NULL) AS unsequenced,
                  (SELECT coalesce(extract(epoch FROM clock_timestamp() - min(at)), 0)::float8 FROM changes
                   WHERE position IS NULL) AS lag_seconds,
                  (SELECT count(*) FROM audit_entries WHERE position IS NULL) AS unsealed"""
    )
    assert row is not None
    return row
