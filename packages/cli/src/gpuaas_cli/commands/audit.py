"""The audit trail."""

from typing import Annotated

from cyclopts import Parameter

from gpuaas_cli import output
from gpuaas_cli.options import DEFAULTS, Options, noun
from gpuaas_cli.session import open_session

app = noun("audit", "Who did what.")


@app.command(name="list")
async def list_(
    *,
    last: Annotated[int, Parameter(help="Only so many, the newest ones.")] = 50,
    platform: Annotated[bool, Parameter(negative="", help="All projects (operators).")] = False,
    options: Options = DEFAULTS,
) -> None:
    """List the newest audit entries of the project."""
    async with open_session(options) as session:
        project_id = None if platform else await session.project_id()
        found = (await session.client.audit.list(project_id=project_id, limit=200).all())[-last:]
    columns = {
        "at": lambda e: e.at,
        "who": lambda e: e.principal_id,
        "action": lambda e: e.action,
        "target": lambda e: e.target,
        "correlation id": lambda e: e.correlation_id,
    }
    output.items(found, columns, empty="Nothing happened yet.")
