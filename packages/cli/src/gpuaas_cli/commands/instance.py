"""App instances: deploy, look, wait, decommission, and the receipt."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from gpuaas_cli import output, resolve
from gpuaas_cli.errors import NOT_FOUND, USAGE, CliError
from gpuaas_cli.options import DEFAULTS, WAIT_SECONDS, Options, Timeout, Wait, noun
from gpuaas_cli.session import Session, open_session

if TYPE_CHECKING:
    from gpuaas_contract.instances import Instance

app = noun("instance", "Deployed apps: deploy, look, wait, decommission, receipt.")
app.command("gpuaas_cli.commands.instance_events:events", name="events", help="What happened, in order.")
app.command("gpuaas_cli.commands.instance_receipt:receipt", name="receipt", help="Proof that nothing is left.")

_MEMBER_COLUMNS = {
    "component": lambda m: m.component_key,
    "status": lambda m: m.status,
    "allocation": lambda m: m.allocation_id,
    "last operation": lambda m: m.last_operation_id,
    "id": lambda m: m.id,
}


@app.command(name="list")
async def list_(
    *,
    all: Annotated[bool, Parameter(negative="", help="Also decommissioned ones.")] = False,
    options: Options = DEFAULTS,
) -> None:
    """List the instances of the project."""
    async with open_session(options) as session:
        found = await session.client.instances.list(project_id=await session.project_id()).all()
    columns = {
        "name": lambda i: i.name,
        "app": lambda i: i.app_slug,
        "status": lambda i: i.status,
        "version": lambda i: i.versions.app,
        "runtime": lambda i: i.versions.observed_runtime,
        "created": lambda i: i.created_at,
        "id": lambda i: i.id,
    }
    shown = [i for i in found if all or i.status != "decommissioned"]
    output.items(shown, columns, empty="No instances: gpuaas instance deploy APP --name NAME --place …")


@app.command
async def show(instance: str, /, *, options: Options = DEFAULTS) -> None:
    """Show one instance: status, conditions, members, and how to use it."""
    async with open_session(options) as session:
        found = await resolve.instance(session, instance)
        await _show(session, found)


async def _show(session: Session, found: "Instance") -> None:
    if output.document(found):
        return
    output.pairs(
        {
            "name": found.name,
            "id": found.id,
            "app": f"{found.app_slug} {found.versions.app}",
            "runtime": f"{found.versions.observed_runtime or 'unknown'} (expected {found.versions.expected_runtime})",
            "status": found.status,
            "created": found.created_at,
            "correlation id": found.correlation_id,
        }
    )
    if found.conditions:
        output.heading("Conditions")
        rows = [[c.type, str(c.status), c.reason, c.message] for c in found.conditions]
        output.table(rows, ["type", "status", "reason", "message"])
    members = await session.client.instances.members(found.id).all()
    output.heading("Members")
    output.items(members, _MEMBER_COLUMNS, empty="none")
    if found.access_notes:
        output.heading("How to use it")
        for note in found.access_notes:
            print(output.clean(note.title))
            for line in filter(None, (note.command, note.text)):
                print("    " + output.clean(line).replace("\n", "\n    "))


@app.command
async def members(instance: str, /, *, options: Options = DEFAULTS) -> None:
    """List the members of an instance, also removed ones."""
    async with open_session(options) as session:
        found = await resolve.instance(session, instance)
        output.items(await session.client.instances.members(found.id).all(), _MEMBER_COLUMNS, empty="No members.")


@app.command
async def deploy(
    app: Annotated[str, Parameter(help="The app's slug: gpuaas app list.")],
    /,
    *,
    name: str,
    place: Annotated[
        list[str],
        Parameter(
            name=["--place", "--allocation"], negative="", help="COMPONENT=ALLOCATION, by name or id; may be repeated."
        ),
    ],
    version: Annotated[str | None, Parameter(help="The newest one where absent.")] = None,
    input: Annotated[
        list[str] | None, Parameter(negative="", help="KEY=VALUE; a value is read as YAML. May be repeated.")
    ] = None,
    inputs_file: Annotated[Path | None, Parameter(help="Inputs as YAML or JSON; --input wins over it.")] = None,
    wait: Wait = False,
    timeout: Timeout = WAIT_SECONDS,
    options: Options = DEFAULTS,
) -> None:
    """Deploy an app on machines that the project has.

    ```
    gpuaas app show APP
    gpuaas instance deploy APP --name first --place controller=one --place worker=one --wait
    gpuaas instance deploy APP --name two --place controller=one --input size=3 --inputs-file in.yaml
    ```
    """
    from gpuaas_contract.instances import InstanceDeploy, InstanceStatus, Placement

    inputs = _read_inputs(inputs_file, input or [])
    async with open_session(options) as session:
        placements = [
            Placement(component_key=key, allocation_id=(await resolve.allocation(session, wanted)).id)
            for key, wanted in (_split(text, "--place COMPONENT=ALLOCATION") for text in place)
        ]
        request = InstanceDeploy(
            project_id=await session.project_id(),
            app_slug=app,
            version=version,
            name=name,
            inputs=inputs,
            placement_intent=placements,
        )
        made = await session.client.instances.deploy(request)
        if wait:
            made = await _wait(session, made, {InstanceStatus.RUNNING}, timeout)
        else:
            output.note(f"Watch it: gpuaas instance wait {made.name}")
        await _show(session, made)
        if wait:
            from gpuaas_cli.waiting import check_instance

            await check_instance(session, made, {InstanceStatus.RUNNING})


async def _wait(session: Session, instance: "Instance", goals: Any, timeout: float) -> "Instance":
    from gpuaas_cli.waiting import wait_for_instance

    return await wait_for_instance(session, instance, goals, timeout)


def _split(text: str, usage: str) -> tuple[str, str]:
    key, found, value = text.partition("=")
    if not found or not key or not value:
        raise CliError(f"{text!r} is not {usage}", USAGE)
    return key, value


def _read_inputs(file: Path | None, given: list[str]) -> dict[str, Any]:
    import yaml

    inputs: dict[str, Any] = {}
    try:
        if file is not None:
            content = yaml.safe_load(file.read_text())
            if not isinstance(content, dict):
                raise CliError(f"{file} does not hold a mapping of inputs", USAGE)
            inputs.update(content)
        for text in given:
            key, value = _split(text, "--input KEY=VALUE")
            inputs[key] = yaml.safe_load(value)
    except yaml.YAMLError as error:
        raise CliError(f"cannot read the inputs: {error}", USAGE) from None
    return inputs


@app.command
async def wait(
    instance: str,
    /,
    *,
    for_: Annotated[
        str, Parameter(name="--for", help="The status to wait for: running or decommissioned.")
    ] = "running",
    timeout: Timeout = WAIT_SECONDS,
    options: Options = DEFAULTS,
) -> None:
    """Wait until an instance is running (or decommissioned), showing the steps as they happen."""
    from gpuaas_contract.instances import InstanceStatus

    if for_ not in ("running", "decommissioned"):
        raise CliError(f"cannot wait for {for_!r}: running or decommissioned", USAGE)
    goals = {InstanceStatus(for_)}
    async with open_session(options) as session:
        found = await _wait(session, await resolve.instance(session, instance), goals, timeout)
        await _show(session, found)
        from gpuaas_cli.waiting import check_instance

        await check_instance(session, found, goals)


@app.command
async def decommission(
    instance: str,
    /,
    *,
    yes: Annotated[bool, Parameter(name=["--yes", "-y"], negative="", help="Do not ask.")] = False,
    wait: Wait = False,
    timeout: Timeout = WAIT_SECONDS,
    options: Options = DEFAULTS,
) -> None:
    """Tear an instance down and prove it: its machines stay, what the app put on them goes."""
    import sys

    async with open_session(options) as session:
        found = await resolve.instance(session, instance)
        if found.status == "decommissioned":
            raise CliError(
                f"{found.name} is decommissioned already", NOT_FOUND, hint=f"gpuaas instance receipt {found.id}"
            )
        if not yes:
            if not sys.stdin.isatty():
                raise CliError("nobody is there to ask whether you are sure", USAGE, hint="--yes")
            print(f"Tear down {found.name} ({found.app_slug})? Type its name: ", end="", file=sys.stderr, flush=True)
            if sys.stdin.readline().strip() != found.name:
                raise CliError("not torn down", USAGE)
        operation = await session.client.instances.request(found.id, "decommission")
        if not wait:
            output.note(f"Watch it: gpuaas operation watch {operation.id}")
            from gpuaas_cli.commands.operation import show_operation

            show_operation(operation)
            return
        from gpuaas_cli.commands.instance_receipt import show_receipt
        from gpuaas_cli.waiting import check_succeeded, wait_for_operation

        operation = await wait_for_operation(session, operation, timeout)
        show_receipt(operation)
        check_succeeded(operation)
