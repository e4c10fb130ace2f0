"""What happened to an instance."""

import json
from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuaas_cli import output, resolve
from gpuaas_cli.options import DEFAULTS, Options
from gpuaas_cli.session import open_session

if TYPE_CHECKING:
    from gpuaas_contract.operations import Operation


async def events(
    instance: str,
    /,
    *,
    follow: Annotated[
        bool, Parameter(name=["--follow", "-f"], negative="", help="Go on with what happens now.")
    ] = False,
    options: Options = DEFAULTS,
) -> None:
    """What happened to an instance, in order; with --follow also what happens from now on.

    With -o json and --follow, one JSON document per line.
    """
    async with open_session(options) as session:
        found = await resolve.instance(session, instance)
        feed = session.client.changes(project_id=found.project_id, instance_id=found.id)
        await feed.page(wait=0)  # the place to go on from, taken before the past is read
        operations = await session.client.operations.list(project_id=found.project_id, instance_id=found.id).all()
        past = sorted((event for o in operations for event in _events_of(o)), key=lambda event: str(event["at"]))
        if not follow:
            columns = {key.replace("_", " "): (lambda row, key=key: row[key]) for key in _FIELDS}
            output.items(past, columns, empty="Nothing happened yet.")
            return
        for event in past:
            _print_line(event)
        async for change in feed:
            _print_line(
                {
                    "at": getattr(change, "at", None),
                    "operation_id": getattr(change, "resource_id", ""),
                    "event": f"{getattr(change, 'noun', 'feed')} {getattr(change, 'event', 'lost its place')}",
                    "message": getattr(change, "message", ""),
                    "correlation_id": getattr(change, "correlation_id", ""),
                }
            )


_FIELDS = ("at", "operation_id", "event", "message", "correlation_id")


def _events_of(operation: "Operation") -> list[dict[str, object]]:
    """The past as the operations remember it; the feed only knows what comes."""

    def event(at: datetime, what: str, message: str = "") -> dict[str, object]:
        return {
            "at": at,
            "operation_id": operation.id,
            "event": f"{operation.kind} {what}",
            "message": message,
            "correlation_id": operation.correlation_id,
        }

    found = [event(operation.created_at, "requested", f"by {operation.requested_by}")]
    for step in operation.steps:
        found.append(event(step.started_at, "step started", step.title))
        if step.ended_at is not None:
            found.append(
                event(step.ended_at, f"step {step.status}", ": ".join(filter(None, (step.title, step.message))))
            )
    if operation.ended_at is not None:
        found.append(event(operation.ended_at, str(operation.state), operation.error.detail if operation.error else ""))
    return found


def _print_line(event: dict[str, object]) -> None:
    if output.format == "json":
        line = {k: v.isoformat() if isinstance(v, datetime) else v for k, v in event.items()}
        print(json.dumps(line), flush=True)
    else:
        print("  ".join(output.text(event[key]) for key in _FIELDS if event[key]), flush=True)
