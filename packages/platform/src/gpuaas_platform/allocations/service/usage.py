"""Usage records, for those who may read them."""

from gpuaas_contract.usage import UsageKind, UsagePage, UsageRecord
from gpuaas_platform.allocations.storage import usage as store
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.pages import cut_page, decode_cursor
from gpuaas_platform.core.records import to_wire
from gpuaas_platform.identity.rules.policy import Caller, Permission
from gpuaas_platform.identity.service.tenants import visible_owners


async def list_usage(
    tx: Transaction,
    caller: Caller,
    project_id: str | None,
    tenant_id: str | None,
    allocation_id: str | None,
    kind: UsageKind | None,
    cursor: str | None,
    limit: int,
) -> UsagePage:
    owners = await visible_owners(tx, caller, project_id, tenant_id, Permission.USAGE_READ)
    rows = await store.list_matching(tx, owners, allocation_id, kind, decode_cursor(cursor), limit + 1)
    rows, after = cut_page(rows, limit)
    return UsagePage(items=[to_wire(UsageRecord, row) for row in rows], next_cursor=after)
