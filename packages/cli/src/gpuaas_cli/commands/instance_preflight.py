"""Check a deploy or an operation before it is requested; nothing is changed."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from gpuaas_cli import output, resolve
from gpuaas_cli.commands.instance_deploy import Access, Mode, Operator
from gpuaas_cli.errors import USAGE, CliError
from gpuaas_cli.inputs import merge, read_inputs
from gpuaas_cli.options import DEFAULTS, FromFile, InputWords, Options, Timeout
from gpuaas_cli.session import Session, open_session

if TYPE_CHECKING:
    from gpuaas_contract.preflights import Preflight

WAIT_SECONDS = 120.0
_TURN = 20.0


async def preflight(
    app: Annotated[str | None, Parameter(help="The app's slug: gpuaas app list.")] = None,
    /,
    *,
    name: Annotated[str | None, Parameter(help="Name of the instance.")] = None,
    place: Annotated[
        list[str] | None, Parameter(negative="", help="COMPONENT=MACHINE, by name or id. Repeatable.")
    ] = None,
    version: Annotated[str | None, Parameter(help="Version; default: the newest.")] = None,
    mode: Mode = None,
    access: Access = None,
    operator_account: Operator = None,
    input: InputWords = None,
    inputs_file: Annotated[Path | None, Parameter(help="Inputs as YAML or JSON; --input wins.")] = None,
    from_file: FromFile = None,
    timeout: Timeout = WAIT_SECONDS,
    options: Options = DEFAULTS,
) -> None:
    """Check whether a deploy would work, by the platform's checks and the app's own.

    Exits with 2 if it would not.

    ```
    gpuaas instance preflight APP --name first --place controller=one --place worker=one
    ```
    """
    from gpuaas_cli.commands.instance_deploy import deploy_request

    fields = merge(from_file, app_slug=app, name=name, version=version, mode=mode)
    inputs = read_inputs(input, inputs_file)
    if inputs:
        fields["inputs"] = {**fields.get("inputs", {}), **inputs}
    async with open_session(options) as session:
        request = await deploy_request(
            session, fields, place or [], options, access, operator_account, command="preflight"
        )
        await finish(session, await session.client.preflights.deploy(request), timeout)


async def preflight_members(
    instance: Annotated[str, Parameter(help="The instance, by name or id.")],
    kind: Annotated[str, Parameter(help="The operation: add, drain, remove, …")],
    targets: Annotated[list[str], Parameter(help="Members; for add, machines.")],
    /,
    *,
    component: Annotated[str | None, Parameter(help="For add: the component's key.")] = None,
    input: InputWords = None,
    policy: Annotated[str, Parameter(help="all_or_nothing, best_effort, or a number.")] = "all_or_nothing",
    timeout: Timeout = WAIT_SECONDS,
    options: Options = DEFAULTS,
) -> None:
    """Check whether an operation on members would work.

    Exits with 2 if it would not.

    ```
    gpuaas member preflight first add two three --component worker
    gpuaas member preflight first drain two
    ```
    """
    from gpuaas_cli.commands.member import member_id, read_policy
    from gpuaas_contract.bulk import MemberOperationsCreate, MembersAdd

    given: dict[str, Any] = {"policy": read_policy(policy), "input": read_inputs(input)}
    if kind == "add" and component is None:
        raise CliError("--component is missing: add needs the component's key", USAGE)
    async with open_session(options) as session:
        found = await resolve.instance(session, instance)
        body: MembersAdd | MemberOperationsCreate
        if kind == "add":
            machines = [(await resolve.allocation(session, target)).id for target in targets]
            body = MembersAdd(component_key=str(component), allocation_ids=machines, **given)
        else:
            members = [await member_id(session, found, target) for target in targets]
            body = MemberOperationsCreate(kind=kind, member_ids=members, **given)
        await finish(session, await session.client.preflights.instance(found.id, body), timeout)


async def finish(session: Session, found: "Preflight", timeout: float) -> None:
    """Wait for the app's own checks, show all findings, and raise if the request would not work."""
    left = timeout
    while found.state == "running" and left > 0:
        found = await session.client.preflights.get(found.id, wait=min(_TURN, left))
        left -= _TURN
    if not output.document(found):
        rows = [[f.severity, f.source, f.message, f.action, f.pointer] for f in found.findings]
        if rows:
            output.table(rows, ["severity", "by", "finding", "what to do", "where"])
        output.note(f"App checks: {found.app_checks.value.replace('_', ' ')}.")
    if found.ok is False:
        raise CliError(f"{found.kind} would not work: {output.count(len(found.findings), 'finding')}", USAGE)
    if found.ok is None:
        raise CliError(f"the app's own checks are not finished after {timeout:.0f} s", USAGE, hint="--timeout SECONDS")
    output.note(f"{found.kind} would work: no blocking findings.")
