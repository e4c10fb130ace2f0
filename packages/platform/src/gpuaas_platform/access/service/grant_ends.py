"""How grants end: revoked, expired, with the person's right to be there, or with the machine."""

from gpuaas_contract.allocations import AllocationStatus
from gpuaas_contract.events import GrantEvent
from gpuaas_contract.grants import LIVE_STATUSES, GrantStatus
from gpuaas_platform.access.records import GrantRecord
from gpuaas_platform.access.service.machine_users import order_users
from gpuaas_platform.access.storage import access as access_store
from gpuaas_platform.access.storage import grants as store
from gpuaas_platform.allocations.records import AllocationRecord
from gpuaas_platform.allocations.storage import allocations as allocation_store
from gpuaas_platform.core.database import Transaction

NOUN = "grant"
ASK_AGAIN_SECONDS = 30


async def tell(tx: Transaction, row: GrantRecord, event: GrantEvent, action: str, **detail: object) -> None:
    await tx.changed(event, row)
    await tx.audit(
        f"{NOUN}.{action}",
        row.id,
        tenant_id=row.tenant_id,
        project_id=row.project_id,
        detail={"allocation_id": row.allocation_id, **detail},
    )


async def end(tx: Transaction, row: GrantRecord, reason: str) -> None:
    """From the end of this transaction on it gives nothing; what the machine has of it goes with the next order."""
    ended = await store.set_status(tx, row.id, GrantStatus.REVOKING, reason, ended=True)
    await access_store.end_of_grant(tx, row.id)
    await tell(tx, ended, GrantEvent.REVOKED, "revoke", user_id=row.user_id, reason=reason)


async def order_where_active(tx: Transaction, allocation: AllocationRecord) -> None:
    if allocation.status == AllocationStatus.ACTIVE:
        await order_users(tx, allocation)


async def end_of_user(
    tx: Transaction, user_id: str, reason: str, *, project_id: str | None = None, tenant_id: str | None = None
) -> None:
    """All that somebody has, or all of a project or tenant."""
    for row in await store.list_live_of_user(tx, user_id, project_id=project_id, tenant_id=tenant_id):
        allocation = await allocation_store.lock(tx, row.allocation_id)
        assert allocation is not None
        await end(tx, row, reason)
        await order_where_active(tx, allocation)


async def end_of_allocation(tx: Transaction, allocation_id: str) -> None:
    """The machine goes, and all that it had with it."""
    for row in await store.list_live(tx, allocation_id):
        await end(tx, row, "the machine was released")
        await store.set_status(tx, row.id, GrantStatus.REVOKED, "the machine was released")


async def sweep(tx: Transaction) -> None:
    """End what has expired, and ask machines again that could not remove somebody."""
    for row in await store.list_expired(tx):
        allocation = await allocation_store.lock(tx, row.allocation_id)
        again = await store.get(tx, row.id)
        assert allocation is not None
        if again is not None and again.status in LIVE_STATUSES:
            await end(tx, again, "it expired")
            await order_where_active(tx, allocation)
    for allocation_id in await store.list_stuck(tx, ASK_AGAIN_SECONDS):
        allocation = await allocation_store.lock(tx, allocation_id)
        assert allocation is not None
        await order_where_active(tx, allocation)
