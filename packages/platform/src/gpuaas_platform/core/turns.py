"""A bounded queue in front of something expensive, in which those who ask take turns."""

import asyncio
import math
import time
from collections import OrderedDict, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from enum import IntEnum

from gpuaas_contract.problems import Code
from gpuaas_platform.core.errors import Refusal

LAST_EVERY = 4
"""Of so many turns one is for the last rank that waits, where better ones wait, too: it comes last, and still comes."""
Waiter = asyncio.Future[None]


class Rank(IntEnum):
    """Who comes first where many wait."""

    KNOWN = 0
    CLEAN = 1
    SUSPECT = 2


class _Line:
    """Waiters by key; the keys take turns."""

    def __init__(self) -> None:
        self._of_key: OrderedDict[str, deque[Waiter]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._of_key)

    def count(self, key: str) -> int:
        return len(self._of_key.get(key, ()))

    def add(self, key: str, waiter: Waiter) -> None:
        self._of_key.setdefault(key, deque()).append(waiter)

    def remove(self, key: str, waiter: Waiter) -> None:
        own = self._of_key.get(key)
        if own is not None and waiter in own:
            own.remove(waiter)
            if not own:
                del self._of_key[key]

    def next(self) -> Waiter:
        key, own = self._of_key.popitem(last=False)
        waiter = own.popleft()
        if own:
            self._of_key[key] = own
        return waiter

    def longest(self) -> tuple[str, int]:
        return max(((key, len(own)) for key, own in self._of_key.items()), key=lambda found: found[1], default=("", 0))

    def newest(self, key: str) -> Waiter:
        return self._of_key[key][-1]


class Turns:
    """`workers` at a time; `most` wait, of these `most_each` with one key, and nobody for much longer than
    `most_seconds`. Whoever has no place is refused at once.

    Where it is full, a better rank takes the place of a worse one, and whoever has fewer waiting that of whoever has
    most: one address cannot keep others out."""

    def __init__(
        self,
        workers: int,
        most: int,
        most_each: int,
        most_seconds: float = math.inf,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clock = clock
        self._free = workers
        self._workers = workers
        self._most = most
        self._most_each = most_each
        self._most_seconds = most_seconds
        self._lines = {rank: _Line() for rank in Rank}
        self._waiting = 0
        self._turns = 0
        self._average = 0.0
        """Seconds of a turn, the newest ones above all."""

    @property
    def waiting(self) -> int:
        return self._waiting

    @asynccontextmanager
    async def turn(self, key: str, rank: Rank = Rank.CLEAN) -> AsyncIterator[None]:
        await self._wait(key, rank)
        begun = self._clock()
        try:
            yield
        finally:
            took = self._clock() - begun
            self._average = 0.8 * self._average + 0.2 * took if self._average else took
            self._release()

    @property
    def _places(self) -> int:
        if not self._average or self._most_seconds == math.inf:
            return self._most
        return max(1, min(self._most, int(self._most_seconds * self._workers / self._average)))

    async def _wait(self, key: str, rank: Rank) -> None:
        if self._free:
            self._free -= 1
            return
        line = self._lines[rank]
        if line.count(key) >= self._most_each or (self._waiting >= self._places and not self._make_room(key, rank)):
            raise self._full()
        waiter: Waiter = asyncio.get_running_loop().create_future()
        line.add(key, waiter)
        self._waiting += 1
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                # Its turn had come in the same moment.
                self._release()
            else:
                self._leave(key, line, waiter)
            raise

    def _make_room(self, key: str, rank: Rank) -> bool:
        for other in sorted(Rank, reverse=True):
            line = self._lines[other]
            longest, count = line.longest()
            if (other > rank and count) or (other == rank and count > line.count(key) + 1):
                waiter = line.newest(longest)
                self._leave(longest, line, waiter)
                if not waiter.done():
                    waiter.set_exception(self._full())
                return True
        return False

    def _leave(self, key: str, line: _Line, waiter: Waiter) -> None:
        before = line.count(key)
        line.remove(key, waiter)
        self._waiting -= before - line.count(key)

    def _release(self) -> None:
        self._turns += 1
        while waiting := [line for line in self._lines.values() if line]:
            waiter = waiting[-1 if self._turns % LAST_EVERY == 0 else 0].next()
            self._waiting -= 1
            if not waiter.done():  # It is cancelled before whoever waited for it hears of that.
                waiter.set_result(None)
                return
        self._free += 1

    def _full(self) -> Refusal:
        wait = math.ceil(min(1 + self._waiting * self._average / self._workers, 60))
        return Refusal(Code.RATE_LIMITED, f"too many log-ins at once; try again in {wait} s", retry_after=wait)
