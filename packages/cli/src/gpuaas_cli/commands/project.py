"""Projects."""

from typing import Annotated

from cyclopts import Parameter

from gpuaas_cli import output, resolve
from gpuaas_cli.errors import USAGE, CliError
from gpuaas_cli.options import DEFAULTS, Options, noun
from gpuaas_cli.session import open_session

app = noun("project", "Projects of a tenant.")


@app.command(name="list")
async def list_(
    *, tenant: Annotated[str | None, Parameter(help="Only those of this tenant.")] = None, options: Options = DEFAULTS
) -> None:
    """List the projects that you can see."""
    async with open_session(options) as session:
        tenant_id = (await resolve.tenant(session, tenant)).id if tenant else None
        found = await session.client.projects.list(tenant_id=tenant_id).all()
    columns = {
        "name": lambda p: p.name,
        "title": lambda p: p.title,
        "id": lambda p: p.id,
        "tenant": lambda p: p.tenant_id,
    }
    output.items(found, columns, empty="No projects.")


@app.command
async def show(project: str | None = None, /, *, options: Options = DEFAULTS) -> None:
    """Show a project, by name or id; without one, the current project."""
    async with open_session(options) as session:
        found = await (session.project() if project is None else session.find_project(project))
    output.one(found, {"name": found.name, "title": found.title, "id": found.id, "tenant": found.tenant_id})


@app.command
async def create(
    name: str,
    /,
    *,
    tenant: Annotated[str | None, Parameter(help="Its tenant; may be left out where there is only one.")] = None,
    title: Annotated[str | None, Parameter(help="A title for people.")] = None,
    options: Options = DEFAULTS,
) -> None:
    """Create a project."""
    async with open_session(options) as session:
        if tenant is not None:
            tenant_id = (await resolve.tenant(session, tenant)).id
        else:
            tenants = await session.client.tenants.list().all()
            if len(tenants) != 1:
                names = ", ".join(t.name for t in tenants) or "none"
                raise CliError(f"which tenant? (there is: {names})", USAGE, hint="--tenant NAME")
            tenant_id = tenants[0].id
        made = await session.client.projects.create(tenant_id, name, title=title)
    output.one(made, {"name": made.name, "title": made.title, "id": made.id, "tenant": made.tenant_id})
