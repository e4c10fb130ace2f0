"""How much committed work still waits for the loops."""

from dataclasses import dataclass

from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.records import Record


@dataclass(frozen=True, slots=True)
class Backlog(Record):
    unsequenced: int
    """Changes that wait for their place in the feed."""
    lag_seconds: float
    """The age of the oldest of them."""
    unsealed: int
    """Audit entries that wait for their place in the chain."""


async def read(tx: Transaction) -> Backlog:
    return await tx.fetch(
        Backlog,
        """SELECT (SELECT count(*) FROM changes WHERE position IS NULL) AS unsequenced,
                  (SELECT coalesce(extract(epoch FROM clock_timestamp() - min(at)), 0)::float8 FROM changes
                   WHERE position IS NULL) AS lag_seconds,
                  (SELECT count(*) FROM audit_entries WHERE position IS NULL) AS unsealed""",
    )
