"""Tenants (operators)."""

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuaas_cli import output, resolve
from gpuaas_cli.inputs import merge
from gpuaas_cli.options import DEFAULTS, FromFile, Options, Yes, noun
from gpuaas_cli.prompts import confirm
from gpuaas_cli.session import open_session

if TYPE_CHECKING:
    from gpuaas_contract.identity import Tenant

app = noun(__name__, __doc__)


def _show(tenant: "Tenant") -> None:
    output.one(tenant, {"name": tenant.name, "title": tenant.title, "id": tenant.id, "created": tenant.created_at})


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
        _show(await resolve.tenant(session, tenant))


@app.command
async def create(
    name: str | None = None,
    /,
    *,
    title: Annotated[str | None, Parameter(help="Title for people.")] = None,
    from_file: FromFile = None,
    options: Options = DEFAULTS,
) -> None:
    """Create a tenant.

    ```
    gpuaas tenant create acme --title "Acme Research"
    echo '{"name": "acme"}' | gpuaas tenant create --from-file - -o json
    ```
    """
    async with open_session(options) as session:
        from gpuaas_contract.identity import TenantCreate

        body = TenantCreate.model_validate(merge(from_file, name=name, title=title))
        _show(await session.client.tenants.create(body.name, title=body.title))


@app.command
async def update(
    tenant: str, /, *, title: Annotated[str, Parameter(help="Title for people.")], options: Options = DEFAULTS
) -> None:
    """Change the title of a tenant."""
    async with open_session(options) as session:
        found = await resolve.tenant(session, tenant)
        _show(await session.client.tenants.update(found.id, title=title))


@app.command
async def delete(tenant: str, /, *, yes: Yes = False, options: Options = DEFAULTS) -> None:
    """Delete an empty tenant."""
    async with open_session(options) as session:
        found = await resolve.tenant(session, tenant)
        confirm(f"Delete tenant {found.name}?", found.name, yes=yes)
        _show(await session.client.tenants.delete(found.id, revision=found.revision))
