"""Growing pauses between attempts, with jitter, so that clients that failed together do not come back together."""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count

_MOST_DOUBLINGS = 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """In seconds: `first_delay`, doubled after every failure up to `longest_delay`."""

    first_delay: float = 0.1
    longest_delay: float = 3.0
    jitter: float = 0.5
    """The share of a pause that is left to chance."""

    def delay(self, failures: int) -> float:
        """The pause after so many failures in a row."""
        pause = min(self.first_delay * 2.0 ** min(failures - 1, _MOST_DOUBLINGS), self.longest_delay)
        return pause * (1 - random.uniform(0, self.jitter))  # noqa: S311 - spreads load, no secret

    def delays(self) -> Iterator[float]:
        """The pauses of one row of failures, for ever."""
        return map(self.delay, count(1))
