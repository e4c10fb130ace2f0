"""LISTEN/NOTIFY: one listening connection per process, any number of waiters."""

import asyncio
from collections.abc import Callable
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
LEASES = "leases"
"""Machines let the holder of a lease in."""
TOKEN_KEYS = "token_keys"  # noqa: S105 - the name of a channel
"""The key that signs tokens has a new version."""
PRINCIPALS = "principals"
"""A principal or its rights were changed; the payload is its id. Triggers send it, whoever made the change."""
PEOPLE = "people"
"""Who may use an instance may have changed. Triggers send it, whoever made the change."""
CHANNELS = (OUTBOX, FEED, NODE_TASKS, ACCESS, LEASES, TOKEN_KEYS, PRINCIPALS, PEOPLE)


class Wakeups:
    """Take the event before you look at the data, then wait on it: nothing in between is missed."""

    def __init__(self, database_url: str) -> None:
        self._url = database_url
        self._events = {channel: asyncio.Event() for channel in CHANNELS}
        self._hears: dict[str, Callable[[str], None]] = {}

    def event(self, channel: str) -> asyncio.Event:
        return self._events[channel]

    def on(self, channel: str, hear: Callable[[str], None]) -> None:
        """Call `hear` with the payload of each notification, in the order of the commits behind them; with an
        empty one after a lost connection, since anything may have been missed."""
        self._hears[channel] = hear

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
                        self._signal(notification.channel, notification.payload)
            except psycopg.Error as error:
                log.warning("wakeups_lost", error=str(error))
                await asyncio.sleep(1)

    def _signal(self, channel: str, payload: str = "") -> None:
        if channel in self._hears:
            self._hears[channel](payload)
        self._events[channel].set()
        self._events[channel] = asyncio.Event()
