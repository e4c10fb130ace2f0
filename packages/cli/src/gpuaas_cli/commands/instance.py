"""Deployed apps: deploy, inspect, change, decommission."""

from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from gpuaas_cli import output, resolve
from gpuaas_cli.commands import (
    instance_change,
    instance_deploy,
    instance_events,
    instance_explain,
    instance_preflight,
    instance_receipt,
)
from gpuaas_cli.errors import NOT_FOUND, USAGE, CliError
from gpuaas_cli.options import DEFAULTS, WAIT_SECONDS, Options, Timeout, Wait, Yes, noun
from gpuaas_cli.prompts import confirm
from gpuaas_cli.session import Session, open_session

if TYPE_CHECKING:
    from gpuaas_contract.instances import Instance

app = noun(__name__, __doc__)
for _verb in (
    instance_deploy.deploy,
    instance_preflight.preflight,
    instance_change.start,
    instance_change.stop,
    instance_change.restart,
    instance_change.upgrade,
    instance_change.configure,
    instance_change.run,
    instance_change.set_mode,
    instance_change.set_operator,
    instance_change.abandon,
    instance_events.events,
    instance_explain.explain,
    instance_receipt.receipt,
):
    app.command(_verb)

_MEMBER_COLUMNS = {
    "component": lambda m: m.component_key,
    "status": lambda m: m.status,
    "allocation": lambda m: m.allocation_id,
    "last operation": lambda m: m.last_operation_id,
    "id": lambda m: m.id,
}

_PEOPLE_COLUMNS = {
    "login": lambda p: p.login,
    "uid": lambda p: p.uid,
    "e-mail": lambda p: p.email,
    "role": lambda p: p.role,
    "since": lambda p: p.since,
    "log-in": lambda p: "left" if p.left_at else "yes" if p.may_log_in else "not yet",
    "problem": lambda p: "; ".join(f"{e.allocation_name}: {e.reason}" for e in p.entries if e.reason),
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
        await show_instance(session, found)


def _ended(found: "Instance") -> str:
    """Return a remark where the version is deprecated or retired."""
    if found.versions.app_status == "published":
        return ""
    why = f": {found.versions.app_status_reason}" if found.versions.app_status_reason else ""
    return f" ({found.versions.app_status}{why})"


def _operator(found: "Instance") -> dict[str, str]:
    if found.operator is None:
        return {}
    who = found.operator.name or found.operator.account_id
    why = f": {found.operator.message}" if found.operator.message else ""
    return {"operator": f"{who} ({found.operator.state}){why}"}


async def show_instance(session: Session, found: "Instance") -> None:
    if output.document(found):
        return
    output.pairs(
        {
            "name": found.name,
            "id": found.id,
            "app": f"{found.app_slug} {found.versions.app}" + _ended(found),
            "runtime": f"{found.versions.observed_runtime or 'unknown'} (expected {found.versions.expected_runtime})",
            **({"mode": found.mode} if found.mode else {}),
            **_operator(found),
            "status": found.status,
            **({"reason": found.reason} if found.reason else {}),
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
async def people(instance: str, /, *, options: Options = DEFAULTS) -> None:
    """List the people who may use an instance: their Linux name and number, and whether they can log in now."""
    async with open_session(options) as session:
        found = await resolve.instance(session, instance)
        listed = await session.client.instances.people(found.id).all()
        output.items(listed, _PEOPLE_COLUMNS, empty="No people: its app has no entrance, or nobody may use it.")


async def wait_for(session: Session, instance: "Instance", goals: Any, timeout: float) -> "Instance":
    from gpuaas_cli.waiting import wait_for_instance

    return await wait_for_instance(session, instance, goals, timeout)


@app.command
async def wait(
    instance: str,
    /,
    *,
    for_: Annotated[str, Parameter(name="--for", help="Status: running or decommissioned.")] = "running",
    timeout: Timeout = WAIT_SECONDS,
    options: Options = DEFAULTS,
) -> None:
    """Wait until an instance is running or decommissioned, and show its steps."""
    from gpuaas_contract.instances import InstanceStatus

    if for_ not in ("running", "decommissioned"):
        raise CliError(f"cannot wait for {for_!r}: expected running or decommissioned", USAGE)
    goals = {InstanceStatus(for_)}
    async with open_session(options) as session:
        found = await wait_for(session, await resolve.instance(session, instance), goals, timeout)
        await show_instance(session, found)
        from gpuaas_cli.waiting import check_instance

        await check_instance(session, found, goals)


@app.command
async def decommission(
    instance: str,
    /,
    *,
    yes: Yes = False,
    wait: Wait = False,
    timeout: Timeout = WAIT_SECONDS,
    options: Options = DEFAULTS,
) -> None:
    """Tear an instance down and prove that nothing is left. Its machines stay."""
    async with open_session(options) as session:
        found = await resolve.instance(session, instance)
        if found.status == "decommissioned":
            raise CliError(
                f"instance {found.name} is already decommissioned",
                NOT_FOUND,
                hint=f"gpuaas instance receipt {found.id}",
            )
        confirm(f"Tear down {found.name} ({found.app_slug})?", found.name, yes=yes)
        operation = await session.client.instances.request(found.id, "decommission")
        if not wait:
            output.note(f"Next: gpuaas operation watch {operation.id}")
            from gpuaas_cli.commands.operation import show_operation

            show_operation(operation)
            return
        from gpuaas_cli.waiting import check_succeeded, wait_for_operation

        operation = await wait_for_operation(session, operation, timeout)
        await instance_receipt.show_receipt(session, operation)
        check_succeeded(operation)
