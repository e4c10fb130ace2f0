"""Projects of a tenant."""

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuaas_cli import output, resolve
from gpuaas_cli.errors import USAGE, CliError
from gpuaas_cli.inputs import merge
from gpuaas_cli.options import DEFAULTS, FromFile, Options, Yes, noun
from gpuaas_cli.prompts import confirm
from gpuaas_cli.session import Session, open_session

if TYPE_CHECKING:
    from gpuaas_contract.identity import Project

app = noun(__name__, __doc__)


def _show(project: "Project") -> None:
    output.one(project, {"name": project.name, "title": project.title, "id": project.id, "tenant": project.tenant_id})


@app.command(name="list")
async def list_(
    *,
    tenant: Annotated[str | None, Parameter(help="Only projects of this tenant.")] = None,
    options: Options = DEFAULTS,
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
    """Show a project, by name or id; default: the current one."""
    async with open_session(options) as session:
        _show(await (session.project() if project is None else session.find_project(project)))


@app.command
async def create(
    name: str | None = None,
    /,
    *,
    tenant: Annotated[str | None, Parameter(help="Its tenant; optional if you see only one.")] = None,
    title: Annotated[str | None, Parameter(help="Title for people.")] = None,
    from_file: FromFile = None,
    options: Options = DEFAULTS,
) -> None:
    """Create a project."""
    async with open_session(options) as session:
        from gpuaas_contract.identity import ProjectCreate

        fields = merge(from_file, name=name, title=title)
        if tenant is not None or "tenant_id" not in fields:
            fields["tenant_id"] = await _tenant_id(session, tenant)
        body = ProjectCreate.model_validate(fields)
        _show(await session.client.projects.create(body.tenant_id, body.name, title=body.title))


async def _tenant_id(session: Session, tenant: str | None) -> str:
    if tenant is not None:
        return (await resolve.tenant(session, tenant)).id
    tenants = await session.client.tenants.list().all()
    if len(tenants) != 1:
        names = ", ".join(t.name for t in tenants) or "none"
        raise CliError(f"no tenant chosen (visible: {names})", USAGE, hint="--tenant NAME")
    return tenants[0].id


@app.command
async def update(
    project: str, /, *, title: Annotated[str, Parameter(help="Title for people.")], options: Options = DEFAULTS
) -> None:
    """Change the title of a project."""
    async with open_session(options) as session:
        found = await session.find_project(project)
        _show(await session.client.projects.update(found.id, title=title))


@app.command
async def delete(project: str, /, *, yes: Yes = False, options: Options = DEFAULTS) -> None:
    """Delete an empty project."""
    async with open_session(options) as session:
        found = await session.find_project(project)
        confirm(f"Delete project {found.name}?", found.name, yes=yes)
        _show(await session.client.projects.delete(found.id, revision=found.revision))
