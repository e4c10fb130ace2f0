"""The audit trail."""

from collections.abc import AsyncIterator

from gpuaas_contract.audit import EXPORT_MEDIA_TYPE, AuditBatch, AuditBatchPage, AuditCheckpoint, AuditEntry, AuditPage
from gpuaas_sdk.pages import Pager
from gpuaas_sdk.resources.base import ResourceRoutes


class Audit(ResourceRoutes):
    def list(
        self,
        *,
        tenant_id: str | None = None,
        project_id: str | None = None,
        action: str | None = None,
        principal_id: str | None = None,
        target: str | None = None,
        outcome: str | None = None,
        correlation_id: str | None = None,
        limit: int | None = None,
    ) -> Pager[AuditEntry]:
        """List entries, oldest first. `action` is one action or the prefix of several."""
        query = {
            "tenant_id": tenant_id,
            "project_id": project_id,
            "action": action,
            "principal_id": principal_id,
            "target": target,
            "outcome": outcome,
            "correlation_id": correlation_id,
        }
        return self._list("/audit", AuditPage, query, limit=limit)

    async def export(
        self,
        *,
        tenant_id: str | None = None,
        project_id: str | None = None,
        action: str | None = None,
        principal_id: str | None = None,
        target: str | None = None,
        outcome: str | None = None,
        correlation_id: str | None = None,
        after_batch: int | None = None,
    ) -> AsyncIterator[str]:
        """Yield the lines of an export of one chain; `gpuaas_sdk.audit.verify_export` checks them."""
        query = {
            "tenant_id": tenant_id,
            "project_id": project_id,
            "action": action,
            "principal_id": principal_id,
            "target": target,
            "outcome": outcome,
            "correlation_id": correlation_id,
            "after_batch": after_batch,
        }
        headers = {"Accept": EXPORT_MEDIA_TYPE}
        async with self._transport.stream("/audit/export", query=query, headers=headers, timeout=60) as answer:
            async for line in answer.aiter_lines():
                yield line

    def sealed(self, tenant_id: str | None = None, *, limit: int | None = None) -> Pager[AuditEntry]:
        """List the entries of one chain, in its order."""
        return self._list("/audit/sealed", AuditPage, {"tenant_id": tenant_id}, limit=limit)

    def batches(self, tenant_id: str | None = None, *, limit: int | None = None) -> Pager[AuditBatch]:
        return self._list("/audit/batches", AuditBatchPage, {"tenant_id": tenant_id}, limit=limit)

    async def checkpoint(self, tenant_id: str | None = None) -> AuditCheckpoint:
        return await self._transport.get("/audit/checkpoint", AuditCheckpoint, {"tenant_id": tenant_id})
