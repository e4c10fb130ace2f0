"""Deploy an app, or check the request first."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from gpuaas_cli import output, resolve
from gpuaas_cli.errors import USAGE, CliError
from gpuaas_cli.inputs import merge, read_inputs, split_pair
from gpuaas_cli.options import DEFAULTS, WAIT_SECONDS, FromFile, InputWords, Options, Timeout, Wait
from gpuaas_cli.prompts import ask, ask_inputs, can_ask
from gpuaas_cli.session import Session, open_session
from gpuaas_contract.nouns import Noun

if TYPE_CHECKING:
    from gpuaas_contract.instances import InstanceDeploy
    from gpuaas_contract.manifest import Component, Manifest


Mode = Annotated[
    str | None, Parameter(help="One of the app's modes: gpuaas app show APP. Default: the app's own choice.")
]
Access = Annotated[
    str | None,
    Parameter(
        help="Access credential, by name or id, that the app's controller enters its machines with; "
        "default: certificates of the platform."
    ),
]
Operator = Annotated[
    str | None,
    Parameter(
        name="--operator-account",
        help="Service account of the app, by name or id, that alone works on the instance; "
        "default: any that the project has.",
    ),
]


async def deploy(
    app: Annotated[str | None, Parameter(help="The app's slug: gpuaas app list.")] = None,
    /,
    *,
    name: Annotated[str | None, Parameter(help="Name of the instance.")] = None,
    place: Annotated[
        list[str] | None,
        Parameter(name=["--place", "--allocation"], negative="", help="COMPONENT=MACHINE, by name or id. Repeatable."),
    ] = None,
    version: Annotated[str | None, Parameter(help="Version; default: the newest.")] = None,
    mode: Mode = None,
    access: Access = None,
    operator_account: Operator = None,
    skip_preflight: Annotated[
        bool,
        Parameter(
            name="--skip-preflight",
            negative="",
            help="Begin without the app's own checks of the machines, which are the first step otherwise.",
        ),
    ] = False,
    input: InputWords = None,
    inputs_file: Annotated[Path | None, Parameter(help="Inputs as YAML or JSON; --input wins.")] = None,
    from_file: FromFile = None,
    dry_run: Annotated[
        bool,
        Parameter(
            name="--dry-run",
            negative="",
            help="Check the request against the app's manifest and show it; send nothing.",
        ),
    ] = False,
    no_input: Annotated[
        bool, Parameter(name="--no-input", negative="", help="Ask nothing on a terminal; use defaults.")
    ] = False,
    wait: Wait = False,
    timeout: Timeout = WAIT_SECONDS,
    options: Options = DEFAULTS,
) -> None:
    """Deploy an app on machines of the project. On a terminal, asks for missing values.

    ```
    gpuaas app show APP
    gpuaas instance deploy APP --name first --place controller=one --place worker=one --wait
    gpuaas instance deploy APP --name two --place controller=one --input size=3 --dry-run
    gpuaas instance deploy APP --name three --place controller=one --mode small --access my-key
    gpuaas instance deploy APP --name four --place controller=one --operator-account my-controller
    gpuaas instance deploy APP
    gpuaas instance deploy --from-file deploy.json -o json
    ```
    """
    fields = merge(from_file, app_slug=app, name=name, version=version, mode=mode)
    if skip_preflight:
        fields["skip_preflight"] = True
    inputs = read_inputs(input, inputs_file)
    if inputs:
        fields["inputs"] = {**fields.get("inputs", {}), **inputs}
    async with open_session(options) as session:
        if can_ask() and not no_input and from_file is None:
            place = await _ask(session, fields, place or [])
        request = await deploy_request(session, fields, place or [], options, access, operator_account)
        if dry_run:
            await _dry_run(session, request)
            return
        from gpuaas_cli.commands.instance import show_instance, wait_for
        from gpuaas_contract.instances import InstanceStatus

        made = await session.client.instances.deploy(request)
        if made.versions.app_status != "published":
            why = made.versions.app_status_reason or "no reason given"
            output.note(f"warning: {made.app_slug} {made.versions.app} is {made.versions.app_status}: {why}")
        if made.mode is not None:
            output.note(f"Mode: {made.mode}")
        if wait:
            made = await wait_for(session, made, {InstanceStatus.RUNNING}, timeout)
        else:
            output.note(f"Next: gpuaas instance wait {made.name}")
        await show_instance(session, made)
        if wait:
            from gpuaas_cli.waiting import check_instance

            await check_instance(session, made, {InstanceStatus.RUNNING})


async def _ask(session: Session, fields: dict[str, Any], place: list[str]) -> list[str]:
    """Ask for the name, machines and inputs that were not given; each answer is checked before the next question."""
    if "app_slug" not in fields:
        return place
    version = await session.client.app_versions.get(fields["app_slug"], fields.get("version") or "latest")
    manifest = version.manifest
    if "name" not in fields:
        fields["name"] = ask("Name of the instance", _name_problem, default=manifest.slug)
    if not place and "placement_intent" not in fields:
        machines = await session.client.allocations.list(project_id=await session.project_id()).all()
        free = [machine.name for machine in machines if machine.status == "active"]
        for component in manifest.components:
            place += _ask_machines(component, free)
    given = fields.get("inputs", {})
    answers = ask_inputs(manifest.inputs, manifest.input_hints, given)
    if answers:
        fields["inputs"] = {**given, **answers}
    return place


def _name_problem(answer: str) -> str | None:
    from pydantic import TypeAdapter, ValidationError

    from gpuaas_contract.base import Name

    try:
        TypeAdapter(Name).validate_python(answer)
    except ValidationError:
        return "a name has small letters, digits and hyphens, and begins with a letter"
    return None


def _range(component: "Component") -> str:
    return str(component.min) if component.min == component.max else f"{component.min} to {component.max}"


def _ask_machines(component: "Component", names: list[str]) -> list[str]:
    def check(answer: str) -> str | None:
        given = answer.replace(",", " ").split()
        unknown = [name for name in given if name not in names and not name.startswith(f"{Noun.ALLOCATION.prefix}_")]
        if unknown:
            return f"no active machine {', '.join(unknown)} (active: {', '.join(names) or 'none'})"
        if not component.min <= len(given) <= component.max:
            return f"{len(given)} given, {_range(component)} required"
        return None

    question = f"Machines for {component.title} ({_range(component)})"
    answer = ask(question, check, help=component.description)
    return [f"{component.key}={name}" for name in answer.replace(",", " ").split()]


async def deploy_request(
    session: Session,
    fields: dict[str, Any],
    place: list[str],
    options: Options,
    access: str | None = None,
    operator: str | None = None,
    *,
    command: str = "deploy",
) -> "InstanceDeploy":
    from gpuaas_contract.instances import InstanceDeploy

    if place:
        fields["placement_intent"] = [
            {"component_key": key, "allocation_id": (await resolve.allocation(session, wanted)).id}
            for key, wanted in (split_pair(text, "--place COMPONENT=MACHINE") for text in place)
        ]
    if access is not None:
        fields["access"] = {"credential_id": (await resolve.credential(session, access)).id}
    if operator is not None:
        fields["operator_account_id"] = await resolve.service_account_id(session, operator)
    for required, flag in (("app_slug", "APP"), ("name", "--name"), ("placement_intent", "--place")):
        if required not in fields:
            raise CliError(f"{flag} is missing", USAGE, hint=f"gpuaas instance {command} --help")
    if options.project is not None or "project_id" not in fields:
        fields["project_id"] = await session.project_id()
    return InstanceDeploy.model_validate(fields)


async def _dry_run(session: Session, request: "InstanceDeploy") -> None:
    version = await session.client.app_versions.get(request.app_slug, request.version or "latest")
    findings = [*_check_placement(request, version.manifest), *_check_inputs(request, version.manifest)]
    shown = {
        "valid": not findings,
        "findings": findings,
        "version": version.manifest.version,
        "request": {"method": "POST", "path": "/v1/app-instances", "body": request.model_dump(mode="json")},
    }
    if not output.document(shown):
        output.yaml(shown["request"])
        for finding in findings:
            output.note(f"finding: {finding}")
    if findings:
        raise CliError(
            f"the platform would refuse this: {output.count(len(findings), 'finding')}",
            USAGE,
            hint=f"gpuaas app show {request.app_slug}",
        )
    output.note("The request is valid by the app's manifest. Nothing was sent.")


def _check_placement(request: "InstanceDeploy", manifest: "Manifest") -> list[str]:
    findings = []
    components = {component.key: component for component in manifest.components}
    placed: dict[str, list[str]] = {key: [] for key in components}
    machines: dict[str, list[str]] = {}
    for placement in request.placement_intent:
        if placement.component_key not in components:
            findings.append(
                f"the app has no component {placement.component_key!r} (components: {', '.join(components)})"
            )
            continue
        placed[placement.component_key].append(placement.allocation_id)
        machines.setdefault(placement.allocation_id, []).append(placement.component_key)
    for key, component in components.items():
        count = len(placed[key])
        if not component.min <= count <= component.max:
            findings.append(f"{key}: {count} placed, {_range(component)} required")
    for machine, keys in machines.items():
        for index, key in enumerate(keys):
            for other in keys[index + 1 :]:
                if other not in components[key].may_share_machine_with:
                    findings.append(f"{key} and {other} cannot share machine {machine}")
    return findings


def _check_inputs(request: "InstanceDeploy", manifest: "Manifest") -> list[str]:
    from gpuaas_contract.json_schemas import find_value_problems

    found = find_value_problems(request.inputs, manifest.inputs)
    return [f"inputs{problem.pointer.replace('/', '.')}: {problem.detail}" for problem in found]
