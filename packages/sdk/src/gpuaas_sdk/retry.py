"""When a request is sent again: only where that is safe, and with growing pauses."""

from dataclasses import dataclass

from gpuaas_contract.backoff import Backoff
from gpuaas_sdk.errors import ApiError, IdempotencyInFlightError, TransportError

_RETRY_STATUSES = {429, 502, 503, 504}
RETRY_AFTER_LIMIT = 30.0


@dataclass(frozen=True, slots=True)
class RetryPolicy(Backoff):
    attempts: int = 6


NO_RETRY = RetryPolicy(attempts=1)


def may_retry(error: TransportError | ApiError) -> bool:
    """Mutations carry an idempotency key and other requests only read: a lost answer does no harm."""
    if isinstance(error, TransportError):
        return True
    return error.status in _RETRY_STATUSES or isinstance(error, IdempotencyInFlightError)
