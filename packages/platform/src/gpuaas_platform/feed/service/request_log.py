"""Which requests were made to change something, or were refused: for a while, and without holding anybody up."""

from collections import deque
from datetime import UTC, datetime
from typing import Any

from gpuaas_contract.problems import Code
from gpuaas_platform.core.database import Database
from gpuaas_platform.feed.storage import history as store

MOST_WAITING = 10_000
"""Where the database is away, older ones are forgotten: this is for finding things, the audit trail is for proof."""
BATCH = 500
TOO_MANY = Code.RATE_LIMITED.status
_READS = {"GET", "HEAD", "OPTIONS"}
_NOT_KEPT = ("/heartbeat",)
"""A lease's heart-beats say nothing but that it lives, every few seconds."""


class RequestLog:
    def __init__(self, database: Database) -> None:
        self._database = database
        self._waiting: deque[dict[str, Any]] = deque(maxlen=MOST_WAITING)

    def note(
        self,
        method: str,
        route: str | None,
        status: int,
        seconds: float,
        principal_id: str | None,
        correlation_id: str,
        place: dict[str, str | None],
    ) -> None:
        """Reads are kept where they were refused to somebody known; what nobody is known for is in the log only, and so
        is what was too much of nobody known: a flood must not fill the disk."""
        kept = principal_id is not None or status != TOO_MANY
        kept = kept and (method not in _READS or (status >= 400 and principal_id is not None))
        if route is None or not kept or (route.endswith(_NOT_KEPT) and status < 400):
            return
        self._waiting.append(
            {
                "at": datetime.now(UTC).isoformat(),
                "method": method,
                "route": route,
                "status": status,
                "principal_id": principal_id,
                "duration_ms": round(seconds * 1000, 1),
                "correlation_id": correlation_id,
                **place,
            }
        )

    async def write(self) -> int:
        """A part of those that wait; how many."""
        batch = [self._waiting.popleft() for _ in range(min(BATCH, len(self._waiting)))]
        if batch:
            async with self._database.system_transaction() as tx:
                await store.insert_requests(tx, batch)
        return len(batch)
