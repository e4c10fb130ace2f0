"""The audit log."""

from gpuaas_contract.base import JsonObject, Page
from gpuaas_sdk.pages import Pager
from gpuaas_sdk.resources.base import ResourceRoutes


class AuditPage(Page):
    items: list[JsonObject]


class Audit(ResourceRoutes):
    def list(self, *, project_id: str | None = None, limit: int | None = None) -> Pager[JsonObject]:
        return self._list("/audit", AuditPage, {"project_id": project_id}, limit=limit)
