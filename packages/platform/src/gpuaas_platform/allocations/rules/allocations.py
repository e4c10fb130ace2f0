"""Who may do what to an allocation, whichever room asks."""

from gpuaas_platform.allocations.records import AllocationRecord, AllocationView
from gpuaas_platform.core.errors import not_found
from gpuaas_platform.identity.rules.policy import Caller, Permission, Scope


def scope_of(row: AllocationRecord) -> Scope:
    return Scope(tenant_id=row.tenant_id, project_id=row.project_id)


def require_allocation(
    row: AllocationView | None, allocation_id: str, caller: Caller, permission: Permission
) -> AllocationView:
    """Return the allocation that was read, if the caller may see it and has the permission."""
    if row is None:
        raise not_found("allocation", allocation_id)
    if row.project_id is None and not caller.may(Permission.ALLOCATION_READ, scope_of(row)):
        # Those who have a role in a project know of its tenant, and of nothing that the tenant itself has.
        raise not_found("allocation", allocation_id, denied=True)
    caller.require(permission, scope_of(row), "allocation", allocation_id)
    return row
