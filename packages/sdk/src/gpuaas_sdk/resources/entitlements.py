"""Which tenants may have which apps."""

from gpuaas_contract.catalogue import Entitlement, EntitlementCreate, EntitlementPage
from gpuaas_sdk.pages import Pager
from gpuaas_sdk.resources.base import ResourceRoutes


class Entitlements(ResourceRoutes):
    async def grant(self, tenant_id: str, app_slug: str, *, idempotency_key: str | None = None) -> Entitlement:
        body = EntitlementCreate(tenant_id=tenant_id, app_slug=app_slug)
        return await self._transport.post("/entitlements", Entitlement, body, idempotency_key=idempotency_key)

    def list(
        self, *, tenant_id: str | None = None, app_slug: str | None = None, limit: int | None = None
    ) -> Pager[Entitlement]:
        query = {"tenant_id": tenant_id, "app_slug": app_slug}
        return self._list("/entitlements", EntitlementPage, query, limit=limit)

    async def get(self, entitlement_id: str) -> Entitlement:
        return await self._transport.get(f"/entitlements/{entitlement_id}", Entitlement)

    async def revoke(self, entitlement_id: str, *, revision: int | None = None) -> Entitlement:
        return await self._transport.delete(f"/entitlements/{entitlement_id}", Entitlement, revision=revision)
