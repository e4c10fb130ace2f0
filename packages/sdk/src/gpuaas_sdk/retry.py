"""Retries: only where they are safe, and with growing pauses."""

from dataclasses import dataclass

from gpuaas_contract.backoff import Backoff
from gpuaas_sdk.errors import ApiError, CertificateError, RateLimitedError, TransportError, UnavailableError

RETRY_AFTER_LIMIT = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy(Backoff):
    attempts: int = 6
    jitter: float = 0.25


NO_RETRY = RetryPolicy(attempts=1)


def may_retry(error: TransportError | ApiError) -> bool:
    """Whether to retry. It is always safe: mutations carry an idempotency key, and other requests only read. A
    certificate that is not trusted does not become so by asking again."""
    if isinstance(error, CertificateError) or (isinstance(error, RateLimitedError) and error.give_up):
        return False
    return isinstance(error, TransportError | UnavailableError)
