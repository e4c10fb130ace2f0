"""The teardown receipt: what was checked on each machine, and what was found."""

import sys
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpuaas_cli import output, resolve
from gpuaas_cli.errors import NOT_FOUND, WORK_FAILED, CliError
from gpuaas_cli.options import DEFAULTS, Options
from gpuaas_cli.session import Session, open_session

if TYPE_CHECKING:
    from gpuaas_contract.operations import Operation

LONGEST_CELL = 48


async def receipt(instance: str, /, *, options: Options = DEFAULTS) -> None:
    """Show the teardown receipt of an instance: each check, what was expected and found."""
    async with open_session(options) as session:
        found = await resolve.instance(session, instance)
        operations = await session.client.operations.list(project_id=found.project_id, instance_id=found.id).all()
        ended = [o for o in operations if o.kind == "decommission" and o.result]
        if not ended:
            raise CliError(
                f"instance {found.name} is {found.status}: it has no receipt yet",
                NOT_FOUND,
                hint=f"gpuaas instance decommission {found.id} --yes --wait",
            )
        newest = max(ended, key=lambda operation: operation.id)
        await show_receipt(session, newest)
        document = newest.result.get("receipt")
        if isinstance(document, dict) and document.get("ok") is False:
            raise CliError(
                "the receipt shows that something is left on a machine",
                WORK_FAILED,
                hint=f"gpuaas operation show {newest.id}",
            )


async def show_receipt(session: Session, operation: "Operation") -> None:
    document: Any = operation.result.get("receipt", operation.result)
    if output.document(document):
        return
    try:
        machines = by_machine(document["members"])
        names = await _names(session, operation, machines)
        rows = [
            [_mark(check["ok"]), names[id], check["check"], check["expected"], check["found"], check["at"]]
            for id, machine in machines.items()
            for check in machine.checks
        ]
        exempt = [f"{names[id]}: {output.text(e)}" for id, machine in machines.items() for e in machine.exempt]
        verdict = "nothing is left" if document["ok"] else "SOMETHING IS LEFT"
    except (KeyError, TypeError):
        # A receipt in an app's own format.
        output.yaml(document)
        return
    cells = [[output.text(cell) for cell in row] for row in rows]
    # Failed checks are evidence and shown in full; passed ones are cut.
    shown = [[_cut(cell) if row[0] == _mark(True) else cell for cell in row] for row in cells]
    output.table(shown, ["", "machine", "check", "expected", "found", "at"])
    if shown != cells:
        print("… (-o json shows all)")
    if exempt:
        output.heading("Left on purpose")
        print("\n".join(exempt))
    bad = sum(1 for row in rows if row[0] != _mark(True))
    colour = "green" if document["ok"] else "red"
    print(f"\n{output.style(verdict, colour, sys.stdout)}: {len(rows) - bad} of {len(rows)} checks passed")


@dataclass
class MachineChecks:
    members: set[str] = field(default_factory=set)
    checks: list[dict[str, Any]] = field(default_factory=list)
    exempt: list[Any] = field(default_factory=list)


def by_machine(members: list[dict[str, Any]]) -> dict[str, MachineChecks]:
    """Group checks by machine: members that share one were checked together, and each check is shown once."""
    machines: dict[str, MachineChecks] = {}
    for member in members:
        machine = machines.setdefault(member["allocation_id"], MachineChecks())
        machine.members.add(member.get("member_id", ""))
        known = {_identity(check) for check in machine.checks}
        machine.checks += [check for check in member["checks"] if _identity(check) not in known]
        machine.exempt += [item for item in member.get("exempt", []) if item not in machine.exempt]
    return machines


def _identity(check: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(check.get(key)) for key in ("check", "command", "expected", "found", "ok"))


async def _names(session: Session, operation: "Operation", machines: dict[str, MachineChecks]) -> dict[str, str]:
    """Return each machine's host name and components; its id where the machine no longer exists."""
    from gpuaas_sdk.errors import GpuaasError

    components: dict[str, str] = {}
    with suppress(GpuaasError):
        assert operation.instance_id is not None
        members = await session.client.instances.members(operation.instance_id).all()
        components = {member.id: member.component_key for member in members}
    names = {}
    for id, machine in machines.items():
        name = id
        with suppress(GpuaasError):
            allocation = await session.client.allocations.get(id)
            name = allocation.hostname or allocation.name
        roles = sorted({components[member] for member in machine.members if member in components})
        names[id] = f"{name} ({', '.join(roles)})" if roles else name
    return names


def _cut(cell: str) -> str:
    return cell if len(cell) <= LONGEST_CELL else f"{cell[: LONGEST_CELL - 2]} …"


def _mark(ok: object) -> str:
    return "ok" if ok is True else "LEFT"
