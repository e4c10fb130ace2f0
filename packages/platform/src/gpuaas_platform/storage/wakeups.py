"""LISTEN/NOTIFY: one listening connection per process, any number of waiters."""

import asyncio
from contextlib import suppress

import psycopg
import structlog

log = structlog.get_logger()

OUTBOX = "outbox"
"""Committed changes wait for their position."""
FEED = "feed"
"""The change feed has grown."""
NODE_TASKS = "node_tasks"
ACCESS = "access"
"""A grant ended."""
TOKEN_KEYS = "token_keys"  # noqa: S105 - the name of a channel
"""The key that signs tokens has a new version."""
CHANNELS = (OUTBOX, FEED, NODE_TASKS, ACCESS, TOKEN_KEYS)


class Wakeups:
    """Take the event before you look at the data, then wait on it: nothing in between is missed."""

    def __init__(self, database_url: str) -> None:
        self._url = database_url
        self._events = {channel: asyncio.Event() for channel in CHANNELS}

    def event(self, channel: str) -> asyncio.Event:
        return self._events[channel]

    async def wait(self, event: asyncio.Event, seconds: float) -> None:
        with suppress(TimeoutError):
            await asyncio.wait_for(event.wait(), seconds)

    async def run(self) -> None:
        """Listen for ever. After a lost connection everybody is woken, since something may have been missed."""
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(self._url, autocommit=True) as connection:
                    for channel in CHANNELS:
                        await connection.execute(f"LISTEN {channel}".encode())
                    for channel in CHANNELS:
                        self._signal(channel)
                    async for notification in connection.notifies():
                        self._signal(notification.channel)
            except psycopg.Error as error:
                log.warning("wakeups_lost", error=str(error))
                await asyncio.sleep(1)

    def _signal(self, channel: str) -> None:
        self._events[channel].set()
        self._events[channel] = asyncio.Event()
