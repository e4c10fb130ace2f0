"""The history of instances: explanations, events and traces."""

from datetime import datetime
from typing import Literal

from gpuaas_contract.history import Explanation, InstanceEvent, InstanceEventPage, Trace
from gpuaas_sdk.pages import Pager
from gpuaas_sdk.resources.base import ResourceRoutes


class History(ResourceRoutes):
    async def explain(self, instance_id: str) -> Explanation:
        """Explain the state of an instance: the member and operation behind it, obstacles, next actions."""
        return await self._transport.get(f"/app-instances/{instance_id}/explain", Explanation)

    def events(
        self,
        instance_id: str,
        *,
        member_id: str | None = None,
        operation_id: str | None = None,
        noun: str | None = None,
        event: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        order: Literal["oldest_first", "newest_first"] = "oldest_first",
        limit: int | None = None,
    ) -> Pager[InstanceEvent]:
        """List events. `event` is one event or the prefix of several (`step_`)."""
        query = {
            "member_id": member_id,
            "operation_id": operation_id,
            "noun": noun,
            "event": event,
            "since": since.isoformat() if since else None,
            "until": until.isoformat() if until else None,
            "order": order,
        }
        return self._list(f"/app-instances/{instance_id}/events", InstanceEventPage, query, limit=limit)

    async def trace(self, correlation_id: str) -> Trace:
        """Fetch everything that one correlation id touched, as far as the caller may see it."""
        return await self._transport.get(f"/traces/{correlation_id}", Trace)
