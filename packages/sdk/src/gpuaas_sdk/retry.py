"""Retries: only where they are safe, and with growing pauses."""

import random
from dataclasses import dataclass

from gpuaas_sdk.errors import ApiError, TransportError, UnavailableError

RETRY_AFTER_LIMIT = 30.0


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    attempts: int = 6
    first_delay: float = 0.1
    longest_delay: float = 3.0

    def delay(self, failures: int) -> float:
        """Double the pause each time, with up to a quarter of jitter, so that many clients do not return together."""
        pause = min(self.first_delay * 2.0 ** min(failures - 1, 30), self.longest_delay)
        return pause * random.uniform(0.75, 1.0)  # noqa: S311 - spreading load, not a secret


NO_RETRY = RetryPolicy(attempts=1)


def may_retry(error: TransportError | ApiError) -> bool:
    """Whether to retry. It is always safe: mutations carry an idempotency key, and other requests only read."""
    return isinstance(error, TransportError | UnavailableError)
