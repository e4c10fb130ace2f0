"""The change feed as an endless async iterator that survives restarts and says when to list again."""

import asyncio
import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass

from gpuaas_contract.changes import Change, ChangePage
from gpuaas_sdk.errors import CursorExpiredError, ProtocolError, TransportError, UnavailableError
from gpuaas_sdk.retry import RetryPolicy
from gpuaas_sdk.transport import DEFAULT_TIMEOUT, Transport

logger = logging.getLogger(__name__)
WAIT_SECONDS = 25
RECONNECT = RetryPolicy(first_delay=0.2, longest_delay=10.0)


@dataclass(frozen=True, slots=True)
class Relist:
    """Changes before this point were not seen: read the state now, then follow what comes."""

    reason: str


class ChangeFeed:
    """Yields a `Relist` first (unless it was given a cursor), then every change in the platform's order.

    The cursor is taken before the `Relist` is handed out, so nothing that happens during the caller's own
    listing is lost; a change may be seen although the listing had it already.
    """

    def __init__(
        self,
        transport: Transport,
        *,
        since: str | None = None,
        project_id: str | None = None,
        instance_id: str | None = None,
        wait: int = WAIT_SECONDS,
    ) -> None:
        self._transport = transport
        self._filters = {"project_id": project_id, "instance_id": instance_id}
        self._wait = wait
        self.cursor = since

    async def page(self, *, wait: int | None = None) -> ChangePage:
        """One request, from the present cursor; moves the cursor on."""
        seconds = self._wait if wait is None else wait
        query = {"since": self.cursor, "wait": seconds, **self._filters}
        page = await self._transport.get("/changes", ChangePage, query, timeout=seconds + DEFAULT_TIMEOUT)
        self.cursor = page.next_cursor
        return page

    async def __aiter__(self) -> AsyncIterator[Change | Relist]:
        reason = "start" if self.cursor is None else None
        failures = 0
        while True:
            try:
                page = await self.page(wait=0 if self.cursor is None else None)
            except CursorExpiredError as error:
                self.cursor = None
                reason = error.detail
                continue
            except (TransportError, UnavailableError, ProtocolError) as error:
                failures += 1
                pause = RECONNECT.delay(failures)
                logger.warning("change feed lost, next try in %.1f s: %s", pause, error)
                await asyncio.sleep(pause)
                continue
            failures = 0
            if reason is not None:
                yield Relist(reason)
                reason = None
            for change in page.items:
                yield change
