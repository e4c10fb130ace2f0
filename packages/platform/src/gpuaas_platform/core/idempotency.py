"""Idempotency keys: the answer to a request is kept with its effect, for whoever repeats the request."""

from dataclasses import dataclass
from typing import Any

from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.records import Record


@dataclass(frozen=True, slots=True)
class KeptAnswer(Record):
    """The answer that was given before to a request with the same idempotency key."""

    held: bool
    """Whether the key is this request's from now on; False while the first request with it is in flight."""
    fingerprint: str | None
    """Of the first request; this and what follows is None where there was none."""
    status: int | None
    body: str | None
    rights: list[dict[str, Any]] | None
    """That the first request needed; None where a version of the platform answered it that did not note them."""


async def begin_request(tx: Transaction, key: str) -> KeptAnswer:
    """Whether the key is `held` from now on, and the answer that was given for it before. A try-lock, not a wait: a
    duplicate that arrives while the first is in flight is told so at once."""
    return await tx.fetch(
        KeptAnswer, "SELECT * FROM open_request(%(principal)s, %(key)s)", principal=tx.principal_id, key=key
    )


async def sweep_keys(tx: Transaction, hours: int) -> int:
    return await tx.run(
        "DELETE FROM idempotency_keys WHERE created_at < now() - make_interval(hours => %(hours)s)",
        hours=hours,
    )
