"""Rate limits: a token bucket per principal in every process; delays that grow with failures."""

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from gpuaas_contract.problems import Code
from gpuaas_platform.core.errors import Refusal

MOST_KEYS = 10_000


class RateLimit:
    """`rate` takes a second on average, `burst` at once. The least recently seen keys are forgotten first."""

    def __init__(self, rate: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = rate
        self._burst = burst
        self._clock = clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def take(self, key: str) -> None:
        now = self._clock()
        level, filled_at = self._buckets.pop(key, (self._burst, now))
        level = min(self._burst, level + (now - filled_at) * self._rate)
        if level < 1:
            self._buckets[key] = (level, now)
            wait = max(1, round((1 - level) / self._rate + 0.5))
            raise Refusal(Code.RATE_LIMITED, f"too many requests; try again in {wait} s", retry_after=wait)
        self._buckets[key] = (level - 1, now)
        if len(self._buckets) > MOST_KEYS:
            self._buckets.popitem(last=False)


@dataclass(frozen=True, slots=True)
class Allowance:
    """So many failures cost nothing; each one more doubles the wait for the next attempt."""

    free: int
    first_seconds: float
    most_seconds: float

    def delay_after(self, failures: int) -> float:
        if failures < self.free or failures < 1:
            return 0
        # Bounded before it is computed: nobody's counter may become a number without end.
        return min(self.most_seconds, self.first_seconds * 2.0 ** min(failures - self.free, 32))


def slow_down(seconds: float, what: str) -> Refusal:
    wait = max(1, math.ceil(seconds))
    return Refusal(Code.RATE_LIMITED, f"too many failed attempts {what}; try again in {wait} s", retry_after=wait)


class GrowingDelay:
    """Failures of each key in this process. For what cannot be guessed anyway, or costs nothing to check."""

    def __init__(
        self,
        allowance: Allowance,
        what: str,
        forget_seconds: float = 3_600,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._allowance = allowance
        self._what = what
        self._forget = forget_seconds
        self._clock = clock
        self._failures: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def check(self, key: str) -> None:
        count, last = self._failures.get(key, (0, 0.0))
        left = last + self._allowance.delay_after(count) - self._clock()
        if left > 0:
            raise slow_down(left, self._what)

    def failed(self, key: str) -> None:
        now = self._clock()
        count, last = self._failures.pop(key, (0, now))
        self._failures[key] = (1 if now - last > self._forget else count + 1, now)
        if len(self._failures) > MOST_KEYS:
            self._failures.popitem(last=False)

    def succeeded(self, key: str) -> None:
        self._failures.pop(key, None)


@dataclass(frozen=True, slots=True)
class Limits:
    requests: RateLimit
    logins: RateLimit

    @classmethod
    def from_rates(cls, requests_per_second: float, logins_per_minute: float) -> "Limits":
        # A burst of less than one would let nobody in, ever.
        return cls(
            requests=RateLimit(requests_per_second, max(1, requests_per_second * 2)),
            logins=RateLimit(logins_per_minute / 60, max(1, logins_per_minute)),
        )
