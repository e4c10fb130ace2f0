"""Quotas of projects."""

from gpuaas_contract.quotas import Quota, QuotaSet
from gpuaas_sdk.resources.base import ResourceRoutes


class Quotas(ResourceRoutes):
    async def get(self, project_id: str) -> Quota:
        return await self._transport.get(f"/projects/{project_id}/quota", Quota)

    async def set(
        self,
        project_id: str,
        *,
        cpus: int | None = None,
        memory_mib: int | None = None,
        disk_gib: int | None = None,
        gpus: int | None = None,
        allocations: int | None = None,
        idempotency_key: str | None = None,
    ) -> Quota:
        """Set all limits at once: omitted ones are unlimited."""
        body = QuotaSet(cpus=cpus, memory_mib=memory_mib, disk_gib=disk_gib, gpus=gpus, allocations=allocations)
        path = f"/projects/{project_id}/quota"
        return await self._transport.put(path, Quota, body, idempotency_key=idempotency_key)
