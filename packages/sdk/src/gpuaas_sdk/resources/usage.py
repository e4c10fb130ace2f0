"""The usage of allocations."""

from gpuaas_contract.usage import UsageKind, UsagePage, UsageRecord
from gpuaas_sdk.pages import Pager
from gpuaas_sdk.resources.base import ResourceRoutes


class Usage(ResourceRoutes):
    def list(
        self,
        *,
        project_id: str | None = None,
        tenant_id: str | None = None,
        allocation_id: str | None = None,
        kind: UsageKind | None = None,
        limit: int | None = None,
    ) -> Pager[UsageRecord]:
        query = {"project_id": project_id, "tenant_id": tenant_id, "allocation_id": allocation_id, "kind": kind}
        return self._list("/usage", UsagePage, query, limit=limit)
