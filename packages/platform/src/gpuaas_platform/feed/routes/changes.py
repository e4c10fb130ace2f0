"""The change feed: as pages that are waited for, or as a stream of server-sent events."""

from typing import Annotated

from fastapi import Header, Query, Request, Response

from gpuaas_contract.changes import EVENT_STREAM, ChangePage
from gpuaas_contract.nouns import Noun
from gpuaas_platform.api.context import Ctx, authenticate
from gpuaas_platform.api.routing import Routes
from gpuaas_platform.feed.records import ChangeFilter
from gpuaas_platform.feed.routes.event_stream import ChangeStream
from gpuaas_platform.feed.service.changes import MAX_WAIT_SECONDS
from gpuaas_platform.identity.rules.policy import Permission

routes = Routes("changes")
MOST_CURSOR = 200
_EVENTS = {"content": {EVENT_STREAM: {"schema": {"type": "string"}}}}


@routes.get("/changes", Permission.AUTHENTICATED, response_model=ChangePage, responses={200: _EVENTS})
async def read_changes(
    ctx: Ctx,
    request: Request,
    since: Annotated[str | None, Query(max_length=MOST_CURSOR)] = None,
    wait: Annotated[float, Query(ge=0, le=MAX_WAIT_SECONDS)] = 0,
    noun: Annotated[list[Noun] | None, Query()] = None,
    tenant_id: str | None = None,
    project_id: str | None = None,
    instance_id: str | None = None,
    last_event_id: Annotated[str | None, Header(max_length=MOST_CURSOR)] = None,
) -> Response | ChangePage:
    """List changes, each once and in one order. Changes that the caller may not read are left out.

    Without `since`, a cursor for the present; with `since=start`, everything that is still kept; else what comes
    behind the cursor. Cursors belong to the principal that got them. With `wait`, the answer comes when something
    has happened, or after so many seconds with no items. 410 means that the cursor is too old: take a fresh one,
    list what you follow, go on from there.

    With `Accept: text/event-stream`, the same as server-sent events: `change` events whose id is the cursor behind
    them (`Last-Event-ID` wins over `since`), comments while nothing happens, and a last event `end` that says why
    the stream ends (a problem, as other routes answer it): for example because the token is no longer good."""
    feed = ctx.platform.feed
    filters = ChangeFilter(frozenset(noun or ()), tenant_id, project_id, instance_id)
    streaming = EVENT_STREAM in request.headers.get("accept", "")
    place = last_event_id if streaming and last_event_id else since
    reader = await feed.open(lambda: authenticate(request), ctx.authenticated, filters, place)
    if not streaming:
        return await reader.page(wait)
    return ChangeStream(feed, reader, ctx.correlation_id)
