"""Whether what the platform stands on answers, and how much work waits."""

import asyncio
from dataclasses import dataclass

import psycopg
from psycopg_pool import PoolTimeout

from gpuaas_platform.core.database import Database, Transaction
from gpuaas_platform.core.openbao import OpenBao
from gpuaas_platform.core.records import Record

PROBE_SECONDS = 2


@dataclass(frozen=True, slots=True)
class Backlog(Record):
    unsequenced: int
    """Changes that wait for their place in the feed."""
    lag_seconds: float
    """The age of the oldest of them."""
    unsealed: int
    """Audit entries that wait for their place in the chain."""


async def _backlog(tx: Transaction) -> Backlog:
    return await tx.fetch(
        Backlog,
        """SELECT (SELECT count(*) FROM changes WHERE position IS NULL) AS unsequenced,
                  (SELECT coalesce(extract(epoch FROM clock_timestamp() - min(at)), 0)::float8 FROM changes
                   WHERE position IS NULL) AS lag_seconds,
                  (SELECT count(*) FROM audit_entries WHERE position IS NULL) AS unsealed""",
    )


@dataclass(frozen=True, slots=True)
class Health:
    database: bool
    secrets_server: bool
    backlog: dict[str, float]
    """Empty while the database does not answer."""

    @property
    def away(self) -> list[str]:
        names = {"the database": self.database, "the secrets server": self.secrets_server}
        return [name for name, answers in names.items() if not answers]


async def probe(database: Database, openbao: OpenBao) -> Health:
    found, secrets_server = await asyncio.gather(_read_backlog(database), _is_healthy(openbao))
    return Health(found is not None, secrets_server, found or {})


async def _read_backlog(database: Database) -> dict[str, float] | None:
    try:
        async with asyncio.timeout(PROBE_SECONDS), database.system_transaction() as tx:
            found = await _backlog(tx)
    except (psycopg.Error, PoolTimeout, TimeoutError):
        return None
    return {
        "feed_unsequenced_changes": found.unsequenced,
        "feed_lag_seconds": found.lag_seconds,
        "audit_unsealed_entries": found.unsealed,
    }


async def _is_healthy(openbao: OpenBao) -> bool:
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            return await openbao.is_healthy()
    except TimeoutError:
        return False
