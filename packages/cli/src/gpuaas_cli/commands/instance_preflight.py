"""Looking first: everything that stands in the way of a deploy or an operation, from the platform and from the app."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuaas_cli import output, resolve
from gpuaas_cli.commands.instance_deploy import read_inputs, request_of
from gpuaas_cli.errors import CONFLICT, USAGE, CliError
from gpuaas_cli.inputs import FromFile, merge
from gpuaas_cli.options import DEFAULTS, Options
from gpuaas_cli.session import Session, open_session

if TYPE_CHECKING:
    from gpuaas_contract.preflights import Preflight

LONGEST_WAIT = 300.0
ONE_WAIT = 20.0


async def preflight(
    app: Annotated[str | None, Parameter(help="The app's slug; with --instance: leave it away.")] = None,
    /,
    *,
    instance: Annotated[str | None, Parameter(help="Look before an operation on this instance instead.")] = None,
    kind: Annotated[str | None, Parameter(help="With --instance: the operation.")] = None,
    member: Annotated[str | None, Parameter(help="With --instance: the member that it is about.")] = None,
    add: Annotated[
        list[str] | None, Parameter(negative="", help="With --instance: COMPONENT=ALLOCATION to add; may be repeated.")
    ] = None,
    name: Annotated[str | None, Parameter(help="What the instance would be called.")] = None,
    place: Annotated[
        list[str] | None, Parameter(negative="", help="COMPONENT=ALLOCATION, by name or id; may be repeated.")
    ] = None,
    version: Annotated[str | None, Parameter(help="The newest one where absent.")] = None,
    input: Annotated[
        list[str] | None, Parameter(negative="", help="KEY=VALUE; a value is read as YAML. May be repeated.")
    ] = None,
    inputs_file: Annotated[Path | None, Parameter(help="Inputs as YAML or JSON; --input wins over it.")] = None,
    from_file: FromFile = None,
    options: Options = DEFAULTS,
) -> None:
    """List everything that stands in the way, and change nothing.

    ```
    gpuaas instance preflight APP --name first --place controller=one --place worker=two
    gpuaas instance preflight --instance first --add worker=three
    gpuaas instance preflight --instance first --kind drain --member MEMBER
    gpuaas instance preflight --from-file deploy.json -o json
    ```
    """
    inputs = read_inputs(inputs_file, input or [])
    async with open_session(options) as session:
        if instance is not None:
            found = await _ask_instance(session, instance, kind, member, add or [], inputs)
        else:
            fields = merge(from_file, app_slug=app, name=name, version=version)
            if inputs:
                fields["inputs"] = {**fields.get("inputs", {}), **inputs}
            request = await request_of(session, fields, place or [], options)
            found = await session.client.preflights.deploy(request)
        show(await _finished(session, found))


async def _ask_instance(
    session: Session, wanted: str, kind: str | None, member: str | None, add: list[str], inputs: dict[str, object]
) -> "Preflight":
    from gpuaas_contract.bulk import MembersAdd
    from gpuaas_contract.operations import OperationCreate

    found = await resolve.instance(session, wanted)
    if add:
        pairs = [text.partition("=")[::2] for text in add]
        keys = {key for key, _ in pairs}
        if len(keys) != 1:
            raise CliError("--add is for one component at a time", USAGE, hint="--add worker=one --add worker=two")
        machines = [(await resolve.allocation(session, machine)).id for _, machine in pairs]
        request = MembersAdd(component_key=keys.pop(), allocation_ids=machines, input=inputs)
        return await session.client.preflights.instance(found.id, request)
    if kind is None:
        raise CliError("--kind or --add is missing", USAGE, hint="gpuaas instance preflight --help")
    operation = OperationCreate(kind=kind, member_id=member, input=inputs)
    return await session.client.preflights.instance(found.id, operation)


async def _finished(session: Session, found: "Preflight") -> "Preflight":
    """The app's own checks take a moment."""
    waited = 0.0
    while found.state == "running" and waited < LONGEST_WAIT:
        output.note("The app's own checks are under way …")
        found = await session.client.preflights.get(found.id, wait=ONE_WAIT)
        waited += ONE_WAIT
    return found


def show(found: "Preflight") -> None:
    if not output.document(found):
        columns = {
            "severity": lambda f: f.severity,
            "from": lambda f: f.source,
            "code": lambda f: f.code,
            "where": lambda f: f.pointer,
            "what": lambda f: f.message,
            "do": lambda f: f.action,
        }
        output.items(found.findings, columns, empty="Nothing stands in the way.")
        output.note(f"The app's own checks: {found.app_checks.value.replace('_', ' ')}.")
    if not found.ok:
        raise CliError("this would not work as it is asked for", CONFLICT)
