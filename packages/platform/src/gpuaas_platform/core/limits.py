"""Rate limits: a token bucket per principal in every process."""

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
