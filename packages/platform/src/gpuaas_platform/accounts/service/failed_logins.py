"""Who failed to log in, written into the audit trail in the background."""

import time
from collections import deque

from gpuaas_contract import ids
from gpuaas_contract.audit import AuditOutcome
from gpuaas_platform.accounts.rules.failures import Failure, FailureEntry, FailureWindows
from gpuaas_platform.core.database import Database
from gpuaas_platform.core.kept_keys import Fingerprints
from gpuaas_platform.core.origins import current_origin

ANONYMOUS = "anonymous"
"""The principal of such entries: nobody is known to have done it."""
MOST_WAITING = 1_000
"""Where the database is away, older ones are forgotten."""


class FailedLogins:
    def __init__(self, database: Database, fingerprints: Fingerprints) -> None:
        self._database = database
        self._fingerprints = fingerprints
        self._windows = FailureWindows(time.monotonic)
        self._waiting: deque[FailureEntry] = deque(maxlen=MOST_WAITING)

    def name(self, typed: str) -> str:
        """Name what somebody typed without keeping it: people type passwords into the wrong field."""
        return f"unknown/{self._fingerprints.of_text(typed)[:32]}"

    def note(self, action: str, target: str, correlation_id: str, *, limited: bool = False) -> None:
        self._windows.note(Failure(action, target, current_origin.get(), correlation_id, limited))

    async def write(self, *, all_of_them: bool = False) -> None:
        self._waiting.extend(self._windows.take_due(all_of_them=all_of_them))
        batch = list(self._waiting)
        if not batch:
            return
        async with self._database.transaction(ANONYMOUS, ids.new_id(ids.CORRELATION)) as tx:
            for entry in batch:
                with tx.on_behalf_of(entry.correlation_id):
                    await tx.audit(
                        entry.action,
                        entry.target,
                        outcome=AuditOutcome.DENIED,
                        detail=entry.detail,
                        origin=entry.origin,
                    )
        for _ in batch:
            self._waiting.popleft()
