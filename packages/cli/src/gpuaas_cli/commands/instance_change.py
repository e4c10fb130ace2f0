"""Change a deployed app: start, stop, restart, upgrade, configure, its mode, abandon."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from gpuaas_cli import output, resolve
from gpuaas_cli.inputs import read_inputs
from gpuaas_cli.options import DEFAULTS, WAIT_SECONDS, InputWords, Options, Queue, Timeout, Wait, Yes
from gpuaas_cli.prompts import confirm
from gpuaas_cli.session import Session, open_session

if TYPE_CHECKING:
    from gpuaas_contract.operations import Operation


async def show_or_wait(session: Session, operation: "Operation", wait: bool, timeout: float) -> None:
    from gpuaas_cli.commands.operation import show_operation

    if not wait:
        output.note(f"Next: gpuaas operation watch {operation.id}")
        show_operation(operation)
        return
    from gpuaas_cli.waiting import check_succeeded, wait_for_operation

    operation = await wait_for_operation(session, operation, timeout)
    show_operation(operation)
    check_succeeded(operation)


async def _request(
    instance: str, kind: str, input: dict[str, Any], queue: bool, wait: bool, timeout: float, options: Options
) -> None:
    async with open_session(options) as session:
        found = await resolve.instance(session, instance)
        operation = await session.client.instances.request(found.id, kind, input=input, queue=queue)
        await show_or_wait(session, operation, wait, timeout)


async def start(
    instance: str,
    /,
    *,
    queue: Queue = False,
    wait: Wait = False,
    timeout: Timeout = WAIT_SECONDS,
    options: Options = DEFAULTS,
) -> None:
    """Start a stopped instance."""
    await _request(instance, "start", {}, queue, wait, timeout, options)


async def stop(
    instance: str,
    /,
    *,
    queue: Queue = False,
    wait: Wait = False,
    timeout: Timeout = WAIT_SECONDS,
    options: Options = DEFAULTS,
) -> None:
    """Stop an instance. Everything stays on its machines."""
    await _request(instance, "stop", {}, queue, wait, timeout, options)


async def restart(
    instance: str,
    /,
    *,
    queue: Queue = False,
    wait: Wait = False,
    timeout: Timeout = WAIT_SECONDS,
    options: Options = DEFAULTS,
) -> None:
    """Stop an instance and start it again."""
    await _request(instance, "restart", {}, queue, wait, timeout, options)


async def run(
    instance: str,
    kind: Annotated[str, Parameter(help="An operation that the app's manifest declares: gpuaas app show APP.")],
    /,
    *,
    input: InputWords = None,
    queue: Queue = False,
    wait: Wait = False,
    timeout: Timeout = WAIT_SECONDS,
    options: Options = DEFAULTS,
) -> None:
    """Run one of the app's own operations on the whole instance."""

    await _request(instance, kind, read_inputs(input), queue, wait, timeout, options)


async def upgrade(
    instance: str,
    version: Annotated[str, Parameter(help="A published version: gpuaas app versions APP.")],
    /,
    *,
    input: InputWords = None,
    inputs_file: Annotated[Path | None, Parameter(help="New deploy inputs as YAML or JSON.")] = None,
    queue: Queue = False,
    wait: Wait = False,
    timeout: Timeout = WAIT_SECONDS,
    options: Options = DEFAULTS,
) -> None:
    """Upgrade an instance to another version of its app.

    Given inputs replace the current ones key by key.

    ```
    gpuaas instance upgrade first 1.3.0 --wait
    ```
    """

    async with open_session(options) as session:
        found = await resolve.instance(session, instance)
        changed = read_inputs(input, inputs_file)
        wanted: dict[str, Any] = {"version": version}
        if changed:
            wanted["inputs"] = {**found.inputs, **changed}
        operation = await session.client.instances.request(found.id, "upgrade", input=wanted, queue=queue)
        await show_or_wait(session, operation, wait, timeout)


async def configure(
    instance: str,
    /,
    *,
    input: InputWords = None,
    inputs_file: Annotated[Path | None, Parameter(help="Deploy inputs as YAML or JSON.")] = None,
    queue: Queue = False,
    wait: Wait = False,
    timeout: Timeout = WAIT_SECONDS,
    options: Options = DEFAULTS,
) -> None:
    """Change deploy inputs of an instance. Inputs that are not given stay.

    ```
    gpuaas instance configure first --input size=3 --wait
    ```
    """
    from gpuaas_cli.errors import USAGE, CliError

    changed = read_inputs(input, inputs_file)
    if not changed:
        raise CliError(
            "no inputs given: use --input KEY=VALUE or --inputs-file FILE",
            USAGE,
            hint=f"gpuaas instance show {instance} -o json",
        )
    async with open_session(options) as session:
        found = await resolve.instance(session, instance)
        wanted = {"inputs": {**found.inputs, **changed}}
        operation = await session.client.instances.request(found.id, "configure", input=wanted, queue=queue)
        await show_or_wait(session, operation, wait, timeout)


async def set_mode(
    instance: str,
    mode: Annotated[str, Parameter(help="One of the app's modes: gpuaas app show APP.")],
    /,
    *,
    options: Options = DEFAULTS,
) -> None:
    """Change the mode of an instance; its members and machines must fit the other one.

    ```
    gpuaas instance set-mode first multi_node
    ```
    """
    from gpuaas_cli.commands.instance import show_instance

    async with open_session(options) as session:
        found = await resolve.instance(session, instance)
        await show_instance(session, await session.client.instances.update(found.id, mode=mode))


async def set_operator(
    instance: str,
    account: Annotated[str, Parameter(help="A service account of the app, by name or id; none: any of them.")],
    /,
    *,
    options: Options = DEFAULTS,
) -> None:
    """Let one service account alone work on an instance, or any of the app again with `none`.

    Refused while an operation runs.

    ```
    gpuaas instance set-operator first my-controller
    gpuaas instance set-operator first none
    ```
    """
    from gpuaas_cli.commands.instance import show_instance

    async with open_session(options) as session:
        found = await resolve.instance(session, instance)
        wanted = None if account == "none" else await resolve.service_account_id(session, account)
        await show_instance(session, await session.client.instances.set_operator(found.id, wanted))


async def abandon(
    instance: str,
    /,
    *,
    reason: Annotated[str, Parameter(help="Why there is no proof, for the audit trail.")],
    yes: Yes = False,
    options: Options = DEFAULTS,
) -> None:
    """Write off an instance whose decommission failed, without proof that its machines are clean."""
    from gpuaas_cli.commands.instance import show_instance

    async with open_session(options) as session:
        found = await resolve.instance(session, instance)
        confirm(f"Write off {found.name} without proof that its machines are clean?", found.name, yes=yes)
        await show_instance(session, await session.client.instances.abandon(found.id, reason))
