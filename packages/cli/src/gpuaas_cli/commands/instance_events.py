"""The event history of an instance."""

import json
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuaas_cli import output, resolve
from gpuaas_cli.errors import USAGE, CliError
from gpuaas_cli.options import DEFAULTS, Options
from gpuaas_cli.session import open_session

if TYPE_CHECKING:
    from gpuaas_contract.history import InstanceEvent

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
Moment = Annotated[str | None, Parameter(help="A time (2026-01-31T12:00:00Z), or an age: 30s, 15m, 2h, 7d.")]


async def events(
    instance: str,
    /,
    *,
    member: Annotated[str | None, Parameter(help="Only events of this member.")] = None,
    operation: Annotated[str | None, Parameter(help="Only events of this operation.")] = None,
    noun: Annotated[str | None, Parameter(help="Only events of this noun: instance, member, operation, …")] = None,
    event: Annotated[str | None, Parameter(help="Only this event, or events with this prefix: step_")] = None,
    since: Moment = None,
    until: Moment = None,
    last: Annotated[int | None, Parameter(help="Only this many of the newest.")] = None,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"], negative="", help="Continue with new events.")] = False,
    options: Options = DEFAULTS,
) -> None:
    """List the events of an instance, oldest first; --follow continues with new ones.

    With -o json and --follow, one JSON object per line.

    ```
    gpuaas instance events first --since 1h
    gpuaas instance events first --event step_failed
    gpuaas instance events first --operation op_01… -o json
    ```
    """
    async with open_session(options) as session:
        found = await resolve.instance(session, instance)
        feed = session.client.changes(project_id=found.project_id, instance_id=found.id)
        await feed.page(wait=0)  # the cursor to continue from, taken before the past is read
        past: list[InstanceEvent] = []
        async for entry in session.client.history.events(
            found.id,
            member_id=member,
            operation_id=operation,
            noun=noun,
            event=event,
            since=_moment(since),
            until=_moment(until),
            order="oldest_first" if last is None else "newest_first",
            limit=500 if last is None else min(last, 500),
        ):
            past.append(entry)
            if last is not None and len(past) >= last:
                break
        if last is not None:
            past.reverse()
        if not follow:
            output.items(past, _COLUMNS, empty="No such events.")
            return
        for entry in past:
            _print_line(entry.at, entry.noun, entry.resource_id, entry.event, entry.message, entry.correlation_id)
        async for change in feed:
            _print_line(
                getattr(change, "at", None),
                getattr(change, "noun", "feed"),
                getattr(change, "resource_id", ""),
                getattr(change, "event", "lost its place"),
                getattr(change, "message", ""),
                getattr(change, "correlation_id", ""),
            )


_COLUMNS = {
    "at": lambda e: e.at,
    "noun": lambda e: e.noun,
    "event": lambda e: e.event,
    "message": lambda e: e.message,
    "id": lambda e: e.resource_id,
    "correlation id": lambda e: e.correlation_id,
}


def _moment(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        if text[-1:] in _UNITS and text[:-1].isdecimal():
            return datetime.now(UTC) - timedelta(seconds=int(text[:-1]) * _UNITS[text[-1]])
        found = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        raise CliError(
            f"cannot read the time {text!r}", USAGE, hint="2026-01-31T12:00:00Z, or 15m for 15 minutes ago"
        ) from None
    return found if found.tzinfo is not None else found.astimezone()


def _print_line(
    at: datetime | None, noun: str, resource_id: str, event: str, message: str, correlation_id: str
) -> None:
    if output.format == "json":
        line = {"at": at.isoformat() if at else None, "noun": noun, "resource_id": resource_id, "event": event}
        print(json.dumps({**line, "message": message, "correlation_id": correlation_id}), flush=True)
    else:
        words = (at, noun, event, message, resource_id, correlation_id)
        print("  ".join(output.text(word) for word in words if word), flush=True)
