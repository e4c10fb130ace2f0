"""The timeline of an allocation: every step is told there and in the change feed, in one transaction."""

from collections.abc import Iterator
from contextlib import contextmanager

from gpuaas_platform.allocations.storage import allocations as store
from gpuaas_platform.core.database import Row, Transaction


async def record(tx: Transaction, row: Row, step: str, message: str) -> None:
    await store.add_timeline(tx, row["id"], step, message)
    await tx.changed("allocation", row, step, message=message, project_id=row["project_id"])


@contextmanager
def on_behalf_of(tx: Transaction, correlation_id: str) -> Iterator[None]:
    """What is written meanwhile belongs to the request that began it, not to the one that happened to go on with it."""
    own, tx.correlation_id = tx.correlation_id, correlation_id
    try:
        yield
    finally:
        tx.correlation_id = own
