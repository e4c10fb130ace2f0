"""Who may know of an app: an app belongs to no tenant, and tenants are entitled to it."""

from gpuaas_platform.catalogue.storage import entitlements as entitlement_store
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import not_found
from gpuaas_platform.identity.rules.policy import Caller, Permission, Scope


def tenants_of(caller: Caller) -> list[str]:
    return sorted({*caller.tenant_ids, *caller.whole_tenant_ids})


async def sees_app(tx: Transaction, caller: Caller, app_slug: str) -> bool:
    """Whether the caller is its publisher or an operator, or of a tenant that is entitled to it. That an account is
    bound to the app says nothing: its tenant may not have the app any more."""
    if caller.may(Permission.APP_PUBLISH, Scope(app_slug=app_slug)):
        return True
    return await entitlement_store.any_of(tx, tenants_of(caller), app_slug)


async def require_app(
    tx: Transaction, caller: Caller, app_slug: str, permission: Permission, noun: str, identifier: str
) -> None:
    """Require a permission for what is an app's own: 404 where the caller may not know of the app, 403 where it may."""
    scope = Scope(app_slug=app_slug)
    if not caller.may(permission, scope) and not await sees_app(tx, caller, app_slug):
        raise not_found(noun, identifier, denied=True)
    caller.require(permission, scope, noun, identifier)
