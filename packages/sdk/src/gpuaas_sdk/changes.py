"""The change feed as an endless async iterator that survives restarts and says when to list again."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass

from gpuaas_contract.changes import CHANGE_EVENT, END_EVENT, EVENT_STREAM, Change, ChangePage
from gpuaas_contract.problems import Code, Problem
from gpuaas_sdk.errors import (
    CursorExpiredError,
    InvalidRequestError,
    ProtocolError,
    TransportError,
    UnauthenticatedError,
    UnavailableError,
    error_from_problem,
)
from gpuaas_sdk.events import parse_events
from gpuaas_sdk.retry import RetryPolicy
from gpuaas_sdk.transport import DEFAULT_TIMEOUT, Query, Transport

logger = logging.getLogger(__name__)
WAIT_SECONDS = 25
RECONNECT = RetryPolicy(first_delay=0.2, longest_delay=10.0)
SILENCE_SECONDS = 35.0
"""A stream sends something at least every ten seconds: one that is silent for this long is lost."""


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
        filters: Query | None = None,
        wait: int = WAIT_SECONDS,
        stream: bool = False,
    ) -> None:
        self._transport = transport
        self._filters = filters or {}
        self._wait = wait
        self._stream = stream
        self._given = since
        self.cursor = since

    async def page(self, *, wait: int | None = None) -> ChangePage:
        """Fetch one page from the current cursor, and advance the cursor."""
        seconds = self._wait if wait is None else wait
        query = {"since": self.cursor, "wait": seconds, **self._filters}
        page = await self._transport.get("/changes", ChangePage, query, timeout=seconds + DEFAULT_TIMEOUT)
        self.cursor = page.next_cursor
        return page

    async def __aiter__(self) -> AsyncGenerator[Change | Relist, None]:
        reason = "start" if self.cursor is None else None
        failures = 0
        while True:
            try:
                if self.cursor is None:
                    await self.page(wait=0)
                if reason is not None:
                    yield Relist(reason)
                    reason = None
                # Closed with us: whoever stops reading leaves no connection behind.
                async with aclosing(self._streamed() if self._stream else self._polled()) as changes:
                    async for change in changes:
                        failures = 0
                        if change is not None:
                            yield change
            except CursorExpiredError as error:
                self.cursor, reason = None, error.detail
            except InvalidRequestError as error:
                # A cursor that the platform itself gave us: its database is not the one that it was.
                if error.code != Code.CURSOR_INVALID or self.cursor in (None, self._given):
                    raise
                self.cursor, reason = None, error.detail
            except UnauthenticatedError:
                # The token ended under an open stream. A new one helps, where we can have one; once.
                failures += 1
                if not self._stream or not self._transport.renewable or failures > 1:
                    raise
            except (TransportError, UnavailableError, ProtocolError) as error:
                failures += 1
                pause = RECONNECT.delay(failures)
                logger.warning("change feed lost, next try in %.1f s: %s", pause, error)
                await asyncio.sleep(pause)

    async def _polled(self) -> AsyncGenerator[Change | None, None]:
        while True:
            for change in (await self.page()).items:
                yield change
            yield None

    async def _streamed(self) -> AsyncGenerator[Change | None, None]:
        """Read until the connection is lost or the platform ends the stream, which is raised."""
        headers = {"Accept": EVENT_STREAM}
        if self.cursor is not None:
            headers["Last-Event-ID"] = self.cursor
        async with (
            self._transport.stream(
                "/changes", query=self._filters, headers=headers, timeout=SILENCE_SECONDS
            ) as response,
            aclosing(parse_events(response.aiter_lines())) as events,
        ):
            async for event in events:
                if event.name == END_EVENT:
                    raise error_from_problem(Problem.model_validate_json(event.data))
                # The place is moved before the change is handed out: it is seen once, also if the caller stops.
                self.cursor = event.id or self.cursor
                yield Change.model_validate_json(event.data) if event.name == CHANGE_EVENT else None
        raise TransportError("the change feed was cut off")
