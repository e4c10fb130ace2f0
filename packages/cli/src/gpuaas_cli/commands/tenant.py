"""Tenants."""

from typing import Annotated

from cyclopts import Parameter

from gpuaas_cli import output, resolve
from gpuaas_cli.options import DEFAULTS, Options, noun
from gpuaas_cli.session import open_session

app = noun("tenant", "Tenants (operators).")


@app.command(name="list")
async def list_(*, options: Options = DEFAULTS) -> None:
    """List the tenants that you can see."""
    async with open_session(options) as session:
        found = await session.client.tenants.list().all()
    columns = {"name": lambda t: t.name, "title": lambda t: t.title, "id": lambda t: t.id}
    output.items(found, columns, empty="No tenants.")


@app.command
async def show(tenant: str, /, *, options: Options = DEFAULTS) -> None:
    """Show one tenant, by name or id."""
    async with open_session(options) as session:
        found = await resolve.tenant(session, tenant)
    output.one(found, {"name": found.name, "title": found.title, "id": found.id, "created": found.created_at})


@app.command
async def create(
    name: str,
    /,
    *,
    title: Annotated[str | None, Parameter(help="A title for people.")] = None,
    options: Options = DEFAULTS,
) -> None:
    """Create a tenant."""
    async with open_session(options) as session:
        made = await session.client.tenants.create(name, title=title)
    output.one(made, {"name": made.name, "title": made.title, "id": made.id})
