"""The timeline of an allocation: every step is told there and in the change feed, in one transaction."""

from gpuaas_platform.storage import allocations as store
from gpuaas_platform.storage.database import Row, Transaction


async def record(tx: Transaction, row: Row, step: str, message: str) -> None:
    await store.add_timeline(tx, row["id"], step, message)
    await tx.changed("allocation", row, step, message=message, project_id=row["project_id"])
