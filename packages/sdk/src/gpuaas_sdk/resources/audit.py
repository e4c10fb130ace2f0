"""The audit trail."""

from gpuaas_contract.audit import AuditEntry, AuditPage
from gpuaas_sdk.pages import Pager
from gpuaas_sdk.resources.base import ResourceRoutes


class Audit(ResourceRoutes):
    def list(self, *, project_id: str | None = None, limit: int | None = None) -> Pager[AuditEntry]:
        return self._list("/audit", AuditPage, {"project_id": project_id}, limit=limit)
