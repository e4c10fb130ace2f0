"""The change feed: which resource changed, in one order for all readers."""

from pydantic import AwareDatetime

from gpuaas_contract.base import Resource

EVENT_STREAM = "text/event-stream"
"""Ask for this media type to get the feed as server-sent events."""
START = "start"
"""As `since`: everything that the feed still holds."""
CHANGE_EVENT = "change"
"""A server-sent event whose data is a `Change`, and whose id is the cursor behind it."""
END_EVENT = "end"
"""The last server-sent event of a stream; its data is a `Problem` that says why."""


class Change(Resource):
    noun: str
    """For example `operation`, `allocation`, `instance`."""
    resource_id: str
    event: str
    """For example `created`, `claimed`, `step_succeeded`; `gpuaas_contract.events` has those of each noun."""
    message: str = ""
    revision: int
    tenant_id: str | None = None
    project_id: str | None = None
    instance_id: str | None = None
    app_slug: str | None = None
    """The app that it is about: that of its instance or preflight, or the one whose version, artifact,
    key or entitlement it is."""
    correlation_id: str
    at: AwareDatetime


class ChangePage(Resource):
    items: list[Change]
    next_cursor: str
    """Pass it as `since` to go on from here; it is returned also when there was nothing."""
