"""History: explanations, events and traces."""

from typing import Annotated, Literal

from fastapi import Path, Query
from pydantic import AwareDatetime

from gpuaas_contract.history import Explanation, InstanceEventPage, Trace
from gpuaas_platform.api.context import Ctx, Limit
from gpuaas_platform.api.routing import Routes
from gpuaas_platform.feed.records import EventFilter
from gpuaas_platform.feed.service import history
from gpuaas_platform.identity.rules.policy import Permission

routes = Routes("history")
Word = Annotated[str | None, Query(max_length=100, pattern=r"^[^\x00]*$")]


@routes.get("/app-instances/{instance_id}/explain", Permission.INSTANCE_READ, response_model=Explanation)
async def explain_instance(ctx: Ctx, instance_id: str) -> Explanation:
    """Which member, which operation, which correlation id, what the adapter says, what it waits for, what to do."""
    async with ctx.read() as tx:
        return await history.explain(tx, ctx.caller, instance_id)


@routes.get("/app-instances/{instance_id}/events", Permission.INSTANCE_READ, response_model=InstanceEventPage)
async def list_instance_events(
    ctx: Ctx,
    instance_id: str,
    member_id: Word = None,
    operation_id: Word = None,
    noun: Word = None,
    event: Word = None,
    since: AwareDatetime | None = None,
    until: AwareDatetime | None = None,
    order: Literal["oldest_first", "newest_first"] = "oldest_first",
    cursor: str | None = None,
    limit: Limit = 100,
) -> InstanceEventPage:
    """The history of an instance, also after its end. `event` is one, or the beginning of several (`step_`)."""
    only = EventFilter(member_id, operation_id, noun, event, since, until)
    newest_first = order == "newest_first"
    async with ctx.read() as tx:
        return await history.list_events(tx, ctx.caller, instance_id, only, cursor, limit, newest_first=newest_first)


@routes.get("/traces/{correlation_id}", Permission.AUTHENTICATED, response_model=Trace)
async def get_trace(ctx: Ctx, correlation_id: Annotated[str, Path(max_length=64, pattern=r"^[^\x00]*$")]) -> Trace:
    """All that one correlation id touched, as far as the caller may see it."""
    async with ctx.read() as tx:
        return await history.trace(tx, ctx.caller, correlation_id)
