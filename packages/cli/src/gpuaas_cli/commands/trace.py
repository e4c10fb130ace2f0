"""Show everything that one correlation id touched, in order of time."""

from datetime import datetime
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuaas_cli import output
from gpuaas_cli.options import DEFAULTS, Options
from gpuaas_cli.session import open_session

if TYPE_CHECKING:
    from gpuaas_contract.history import Trace


async def trace(
    correlation_id: Annotated[str, Parameter(help="From an error, an operation, a log or a machine's journal.")],
    /,
    *,
    options: Options = DEFAULTS,
) -> None:
    """Show the requests, audit entries, operations, steps, commands and events of a correlation id.

    ```
    gpuaas trace cor_01kabcdefghjkmnpqrstvwxyz0
    gpuaas trace cor_01kabcdefghjkmnpqrstvwxyz0 -o json
    ```
    """
    async with open_session(options) as session:
        found = await session.client.history.trace(correlation_id)
    if output.document(found):
        return
    rows = sorted(_rows(found), key=lambda row: row[0])
    output.table([[output.text(at)[11:], kind, what, result] for at, kind, what, result in rows], _HEADERS)
    if found.truncated:
        output.note("The list is not complete: there are more entries.")


_HEADERS = ["at", "what", "which", "result"]


def _rows(found: "Trace") -> list[tuple[datetime, str, str, str]]:
    rows: list[tuple[datetime, str, str, str]] = []
    for request in found.requests:
        who = f"{request.status} in {request.duration_ms:.0f} ms, by {request.principal_id or 'anonymous'}"
        rows.append((request.at, "request", f"{request.method} {request.route}", who))
    for entry in found.audit:
        rows.append((entry.at, "audit", f"{entry.action} {entry.target}", f"{entry.outcome}, by {entry.principal_id}"))
    for operation in found.operations:
        rows.append((operation.created_at, "operation", f"{operation.kind} {operation.id}", str(operation.state)))
        for step in operation.steps:
            how = f"{step.status}{': ' + step.message if step.message else ''}"
            rows.append((step.started_at, "step", f"{operation.kind}: {step.title}", how))
            for command in step.commands:
                status = "no answer" if command.exit_status is None else f"exit {command.exit_status}"
                which = f"{command.machine}: {command.name}"
                rows.append((command.started_at, "command", which, f"{status} in {output.seconds(command.seconds)}"))
    for event in found.events:
        if not event.event.startswith("step_"):
            rows.append((event.at, "event", f"{event.noun} {event.resource_id}", f"{event.event} {event.message}"))
    return rows
