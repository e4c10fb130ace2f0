"""A queue in which nobody's slow work delays the work of others: one at a time for each owner, and those first who
have used least of late."""

import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

MOST_WAITING_OF_ONE = 64
MOST_WAITING = 512
HALF_LIFE_SECONDS = 60.0
SLOW_SECONDS = 0.5
"""Who has used more than this of late leaves one worker to the others."""
MOST_REMEMBERED = 10_000

T = TypeVar("T")


class QueueFullError(Exception):
    """Too much waits already, of this owner or of all."""


class FairQueue(Generic[T]):
    """Without I/O: whoever has a free worker takes, and says afterwards how long it took."""

    def __init__(self, workers: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._workers = workers
        self._clock = clock
        self._waiting: dict[str, deque[T]] = {}
        """In the order in which their owners came."""
        self._running: set[str] = set()
        self._used: dict[str, tuple[float, float]] = {}
        """Seconds, and when that was so: half of them are forgotten in each half-life."""

    def put(self, owner: str, item: T) -> None:
        own = self._waiting.get(owner, ())
        if len(own) >= MOST_WAITING_OF_ONE or sum(map(len, self._waiting.values())) >= MOST_WAITING:
            raise QueueFullError
        self._waiting.setdefault(owner, deque()).append(item)

    def take(self) -> tuple[str, T] | None:
        """Return the next item that may run now, and its owner. It runs until `done`."""
        if len(self._running) >= self._workers:
            return None
        # Of those who have used nothing of late, who came first.
        for owner in sorted(self._waiting, key=self.used):
            if owner in self._running or not self._has_room(owner):
                continue
            own = self._waiting[owner]
            item = own.popleft()
            if not own:
                del self._waiting[owner]
            self._running.add(owner)
            return owner, item
        return None

    def _has_room(self, owner: str) -> bool:
        if self.used(owner) <= SLOW_SECONDS:
            return True
        slow = sum(self.used(other) > SLOW_SECONDS for other in self._running)
        return slow < max(1, self._workers - 1)

    def done(self, owner: str, seconds: float) -> None:
        self._running.discard(owner)
        self._used[owner] = (self.used(owner) + seconds, self._clock())
        if len(self._used) > MOST_REMEMBERED:
            for forgotten in sorted(self._used, key=self.used)[: MOST_REMEMBERED // 2]:
                del self._used[forgotten]

    def remove(self, owner: str, item: T) -> None:
        """Nobody waits for it any more. What runs or is done is left alone."""
        own = self._waiting.get(owner)
        if own is not None and item in own:
            own.remove(item)
            if not own:
                del self._waiting[owner]

    def used(self, owner: str) -> float:
        seconds, at = self._used.get(owner, (0.0, 0.0))
        left: float = seconds * 0.5 ** ((self._clock() - at) / HALF_LIFE_SECONDS)
        # Ordinary checks take some milliseconds: they do not change the order.
        return left if left > 0.1 else 0.0
