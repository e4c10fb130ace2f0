"""Access to machines, whoever asks for it: the way in."""

from collections.abc import Sequence

from gpuaas_contract.allocations import AllocationStatus
from gpuaas_contract.problems import Code
from gpuaas_platform.access.records import AccessGrantRecord
from gpuaas_platform.access.storage import access as store
from gpuaas_platform.allocations.records import AllocationRecord, AllocationView
from gpuaas_platform.allocations.rules import shapes
from gpuaas_platform.allocations.storage import allocations as allocation_store
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import Refusal, not_found
from gpuaas_platform.identity.rules.policy import Caller


def require_active(row: AllocationRecord) -> None:
    if row.status != AllocationStatus.ACTIVE:
        raise Refusal(Code.INVALID_STATE, f"allocation {row.name} is {row.status}, not active")


async def open_stream(
    tx: Transaction, caller: Caller, grant_id: str, allocation_id: str
) -> tuple[AccessGrantRecord, AllocationView]:
    """The grant and the machine that a stream is asked for, where the caller may have it."""
    grant = await store.get(tx, grant_id)
    if grant is None or grant.principal_id != caller.id or allocation_id not in grant.allocation_ids:
        raise not_found("access grant", grant_id)
    if grant.member_id is not None:
        # A tunnel's access is for its port only, and goes through the route of that port.
        raise not_found("access grant", grant_id)
    if not grant.open or await store.list_ended(tx, [grant_id]):
        raise Refusal(Code.INVALID_STATE, "this access grant has ended; ask for a new one")
    machine = await allocation_store.get(tx, allocation_id)
    assert machine is not None
    shapes.require_support(machine, "access")
    require_active(machine)
    await tx.audit_owned("access.open_stream", machine, {"grant": grant_id})
    return grant, machine


async def list_ended(tx: Transaction, access_ids: Sequence[str]) -> set[str]:
    """Find the access grants that have ended, whose streams are to be cut."""
    return await store.list_ended(tx, list(access_ids))
