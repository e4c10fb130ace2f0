"""Usage that apps report of what ran in their instances."""

from collections.abc import Sequence
from datetime import datetime

from gpuaas_contract.app_usage import AppUsageAnswer, AppUsageBatch, AppUsagePage, AppUsageRecord, AppUsageReport
from gpuaas_sdk.pages import Pager
from gpuaas_sdk.resources.base import ResourceRoutes


class AppUsage(ResourceRoutes):
    async def report(self, instance_id: str, records: Sequence[AppUsageReport]) -> AppUsageAnswer:
        """Report usage with the app's own service account. Repeating a record is harmless: its id counts once."""
        body = AppUsageBatch(records=[*records])
        return await self._transport.post(f"/app-instances/{instance_id}/usage", AppUsageAnswer, body)

    def list(
        self,
        *,
        project_id: str | None = None,
        instance_id: str | None = None,
        app_slug: str | None = None,
        subject: str | None = None,
        work_id: str | None = None,
        unit: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        limit: int | None = None,
    ) -> Pager[AppUsageRecord]:
        query = {
            "project_id": project_id,
            "instance_id": instance_id,
            "app_slug": app_slug,
            "subject": subject,
            "work_id": work_id,
            "unit": unit,
            "since": None if since is None else since.isoformat(),
            "until": None if until is None else until.isoformat(),
        }
        return self._list("/app-usage", AppUsagePage, query, limit=limit)
