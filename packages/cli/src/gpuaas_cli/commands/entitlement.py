"""Which tenants may see and deploy which apps."""

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuaas_cli import output, resolve
from gpuaas_cli.errors import NOT_FOUND, USAGE, CliError
from gpuaas_cli.options import DEFAULTS, Options, Yes, noun
from gpuaas_cli.prompts import confirm
from gpuaas_cli.session import Session, open_session

if TYPE_CHECKING:
    from gpuaas_contract.catalogue import Entitlement

app = noun(__name__, __doc__)


def _show(entitlement: "Entitlement") -> None:
    shown = {"tenant": entitlement.tenant_id, "app": entitlement.app_slug, "id": entitlement.id}
    output.one(entitlement, shown)


async def _tenant_id(session: Session, wanted: str) -> str:
    """A publisher knows tenants by their ids only, and may not look them up."""
    from gpuaas_contract import ids

    return wanted if ids.is_id(wanted, ids.TENANT) else (await resolve.tenant(session, wanted)).id


@app.command(name="list")
async def list_(
    *,
    tenant: Annotated[str | None, Parameter(help="Only those of this tenant, by name or id.")] = None,
    app: Annotated[str | None, Parameter(name="--app", help="Only those to this app.")] = None,
    options: Options = DEFAULTS,
) -> None:
    """List who may have what: of your tenants, and of the apps that you publish."""
    async with open_session(options) as session:
        tenant_id = await _tenant_id(session, tenant) if tenant else None
        found = await session.client.entitlements.list(tenant_id=tenant_id, app_slug=app).all()
    columns = {
        "tenant": lambda e: e.tenant_id,
        "app": lambda e: e.app_slug,
        "granted": lambda e: e.created_at,
        "id": lambda e: e.id,
    }
    output.items(found, columns, empty="Nobody is entitled: gpuaas entitlement grant TENANT APP")


@app.command
async def grant(
    tenant: Annotated[str, Parameter(help="The tenant, by name or id.")],
    app: Annotated[str, Parameter(help="The app's slug.")],
    /,
    *,
    options: Options = DEFAULTS,
) -> None:
    """Let a tenant see and deploy an app.

    ```
    gpuaas entitlement grant acme echo
    ```
    """
    async with open_session(options) as session:
        _show(await session.client.entitlements.grant(await _tenant_id(session, tenant), app))


@app.command
async def revoke(
    entitlement: Annotated[str, Parameter(help="TENANT/APP, for example acme/echo, or the entitlement's id.")],
    /,
    *,
    yes: Yes = False,
    options: Options = DEFAULTS,
) -> None:
    """Take an app from a tenant: what runs stays, nothing new is deployed."""
    confirm(f"Revoke {entitlement}?", entitlement, yes=yes)
    async with open_session(options) as session:
        _show(await session.client.entitlements.revoke(await _find(session, entitlement)))


async def _find(session: Session, wanted: str) -> str:
    from gpuaas_contract import ids

    if ids.is_id(wanted, ids.ENTITLEMENT):
        return wanted
    tenant, slash, slug = wanted.partition("/")
    if not slash:
        raise CliError(f"{wanted!r} is neither TENANT/APP nor an id", USAGE, hint="gpuaas entitlement list")
    tenant_id = await _tenant_id(session, tenant)
    found = await session.client.entitlements.list(tenant_id=tenant_id, app_slug=slug).all()
    if not found:
        raise CliError(f"{tenant} is not entitled to {slug}", NOT_FOUND, hint="gpuaas entitlement list")
    return found[0].id
