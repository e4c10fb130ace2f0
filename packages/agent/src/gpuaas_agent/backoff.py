"""Pauses that grow, with jitter, so that many agents do not come back in step."""

import random


class Backoff:
    def __init__(self, *, first: float, limit: float) -> None:
        self._first = first
        self._limit = limit
        self._next = first

    def next(self) -> float:
        pause = self._next
        self._next = min(self._next * 2, self._limit)
        return pause * random.uniform(0.5, 1.0)  # noqa: S311 - jitter, not a secret

    def reset(self) -> None:
        self._next = self._first
