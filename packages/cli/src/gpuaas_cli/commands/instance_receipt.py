"""The teardown receipt: what was looked at on each machine, and what was found."""

import sys
from typing import TYPE_CHECKING, Any

from gpuaas_cli import output, resolve
from gpuaas_cli.errors import NOT_FOUND, WORK_FAILED, CliError
from gpuaas_cli.options import DEFAULTS, Options
from gpuaas_cli.session import open_session

if TYPE_CHECKING:
    from gpuaas_contract.operations import Operation


async def receipt(instance: str, /, *, options: Options = DEFAULTS) -> None:
    """Show the receipt of an instance's decommission: every probe, what was expected and what was found."""
    async with open_session(options) as session:
        found = await resolve.instance(session, instance)
        operations = await session.client.operations.list(project_id=found.project_id, instance_id=found.id).all()
        ended = [o for o in operations if o.kind == "decommission" and o.result]
        if not ended:
            raise CliError(
                f"{found.name} is {found.status} and has no receipt yet",
                NOT_FOUND,
                hint=f"gpuaas instance decommission {found.id} --yes --wait",
            )
        newest = max(ended, key=lambda operation: operation.id)
        show_receipt(newest)
        document = newest.result.get("receipt")
        if isinstance(document, dict) and document.get("ok") is False:
            raise CliError(
                "the receipt says that something is left", WORK_FAILED, hint=f"gpuaas operation show {newest.id}"
            )


def show_receipt(operation: "Operation") -> None:
    document: Any = operation.result.get("receipt", operation.result)
    if output.document(document):
        return
    try:
        rows = [
            [
                _mark(check["ok"]),
                member["allocation_id"],
                check["check"],
                check["expected"],
                check["found"],
                check["at"],
            ]
            for member in document["members"]
            for check in member["checks"]
        ]
        exempt = [
            f"{member['allocation_id']}: {output.text(e)}"
            for member in document["members"]
            for e in member.get("exempt", [])
        ]
        verdict = "nothing is left" if document["ok"] else "SOMETHING IS LEFT"
    except (KeyError, TypeError):
        # Another app's own shape: shown as it is.
        output.yaml(document)
        return
    output.table(
        [[output.text(cell) for cell in row] for row in rows], ["", "machine", "check", "expected", "found", "at"]
    )
    if exempt:
        output.heading("Left on purpose")
        print("\n".join(exempt))
    bad = sum(1 for row in rows if row[0] != _mark(True))
    colour = "green" if document["ok"] else "red"
    print(f"\n{output.style(verdict, colour, sys.stdout)}: {len(rows) - bad} of {len(rows)} checks passed")


def _mark(ok: object) -> str:
    return "ok" if ok is True else "LEFT"
