"""Work on instances, step by step."""

from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from gpuaas_cli import output, resolve
from gpuaas_cli.errors import next_command
from gpuaas_cli.options import DEFAULTS, WAIT_SECONDS, Options, Timeout, Wait, noun
from gpuaas_cli.session import open_session

if TYPE_CHECKING:
    from gpuaas_contract.operations import Operation

app = noun(__name__, __doc__)
State = Literal["pending", "running", "succeeded", "failed", "cancelled"]


@app.command(name="list")
async def list_(
    *,
    instance: Annotated[str | None, Parameter(help="Only operations of this instance.")] = None,
    state: Annotated[State | None, Parameter(help="Only operations in this state.")] = None,
    options: Options = DEFAULTS,
) -> None:
    """List the operations of the project."""
    from gpuaas_contract.operations import OperationState

    async with open_session(options) as session:
        instance_id = (await resolve.instance(session, instance)).id if instance else None
        wanted = OperationState(state) if state else None
        found = await session.client.operations.list(
            project_id=await session.project_id(), instance_id=instance_id, state=wanted
        ).all()
    columns = {
        "kind": lambda o: o.kind,
        "state": lambda o: o.state,
        "attempt": lambda o: o.attempt,
        "requested": lambda o: o.created_at,
        "took": _took,
        "instance": lambda o: o.instance_id,
        "error": lambda o: o.error.code if o.error else "",
        "id": lambda o: o.id,
    }
    output.items(found, columns, empty="No operations.")


def _took(operation: "Operation") -> str:
    if operation.started_at is None or operation.ended_at is None:
        return ""
    return output.seconds((operation.ended_at - operation.started_at).total_seconds())


def show_operation(operation: "Operation") -> None:
    if output.document(operation):
        return
    from gpuaas_cli.live import step_seconds, step_state

    error = operation.error
    output.pairs(
        {
            "operation": operation.id,
            "kind": operation.kind,
            "state": f"{operation.state}{', queued' if operation.queued else ''}",
            "waits for": operation.waits_for,
            "cancel requested": operation.cancel_requested or None,
            "attempt": operation.attempt,
            "took": _took(operation),
            "instance": operation.instance_id,
            "member": operation.member_id,
            "lease": f"{operation.lease.holder} until {output.text(operation.lease.expires_at)}"
            if operation.lease
            else "",
            "deadline": operation.deadline if not operation.state.is_final else None,
            "requested by": operation.requested_by,
            "correlation id": operation.correlation_id,
            "error": f"{error.code}: {error.detail}" if error else "",
            "retryable": error.retryable if error else None,
            "next": "\n".join(next_command(action) for action in operation.allowed_actions),
        }
    )
    if operation.steps:
        output.heading("Steps")
        rows = []
        for step in operation.steps:
            took = step_seconds(step)
            shown = "" if took is None else output.seconds(took)
            rows.append([str(step.attempt), step.key, step_state(step, operation), shown, step.title, step.message])
        output.table(rows, ["attempt", "key", "status", "took", "title", "message"])


@app.command
async def show(operation: str, /, *, options: Options = DEFAULTS) -> None:
    """Show one operation with its steps and their evidence (-o json)."""
    async with open_session(options) as session:
        show_operation(await session.client.operations.get(operation))


@app.command
async def watch(operation: str, /, *, timeout: Timeout = WAIT_SECONDS, options: Options = DEFAULTS) -> None:
    """Follow an operation live until it ends."""
    async with open_session(options) as session:
        from gpuaas_cli.waiting import check_succeeded, wait_for_operation

        found = await session.client.operations.get(operation)
        found = await wait_for_operation(session, found, timeout)
        show_operation(found)
        check_succeeded(found)


@app.command
async def cancel(
    operation: str, /, *, wait: Wait = False, timeout: Timeout = WAIT_SECONDS, options: Options = DEFAULTS
) -> None:
    """Cancel an operation: at once if no controller works on it, otherwise between two steps."""
    async with open_session(options) as session:
        found = await session.client.operations.cancel(operation)
        if wait and not found.state.is_final:
            from gpuaas_cli.waiting import wait_for_operation

            found = await wait_for_operation(session, found, timeout)
        show_operation(found)


@app.command
async def retry(
    operation: str, *, wait: Wait = False, timeout: Timeout = WAIT_SECONDS, options: Options = DEFAULTS
) -> None:
    """Retry a failed operation."""
    async with open_session(options) as session:
        found = await session.client.operations.retry(operation)
        if not wait:
            show_operation(found)
            return
        from gpuaas_cli.waiting import check_succeeded, wait_for_operation

        found = await wait_for_operation(session, found, timeout)
        show_operation(found)
        check_succeeded(found)
