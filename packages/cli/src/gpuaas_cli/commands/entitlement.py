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
    """Return a tenant's id. An id is not looked up: a publisher may not read tenants."""
    from gpuaas_contract import ids

    return wanted if ids.is_id(wanted, ids.TENANT) else (await resolve.tenant(session, wanted)).id


@app.command(name="list")
async def list_(
    *,
    tenant: Annotated[str | None, Parameter(help="Only entitlements of this tenant, by name or id.")] = None,
    app: Annotated[str | None, Parameter(name="--app", help="Only entitlements to this app.")] = None,
    options: Options = DEFAULTS,
) -> None:
    """List the entitlements of your tenants and of the apps that you publish."""
    async with open_session(options) as session:
        tenant_id = await _tenant_id(session, tenant) if tenant else None
        found = await session.client.entitlements.list(tenant_id=tenant_id, app_slug=app).all()
    columns = {
        "tenant": lambda e: e.tenant_id,
        "app": lambda e: e.app_slug,
        "granted": lambda e: e.created_at,
        "id": lambda e: e.id,
    }
    output.items(found, columns, empty="No entitlements: gpuaas entitlement grant TENANT APP")


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
    """Revoke a tenant's entitlement. Instances keep running and can be taken apart; none is deployed or upgraded."""
    confirm(f"Revoke {entitlement}?", entitlement, yes=yes)
    async with open_session(options) as session:
        _show(await session.client.entitlements.revoke(await _find(session, entitlement)))


async def _find(session: Session, wanted: str) -> str:
    from gpuaas_contract import ids

    if ids.is_id(wanted, ids.ENTITLEMENT):
        return wanted
    tenant, slash, slug = wanted.partition("/")
    if not slash:
        raise CliError(f"cannot read {wanted!r}: expected TENANT/APP or an id", USAGE, hint="gpuaas entitlement list")
    tenant_id = await _tenant_id(session, tenant)
    found = await session.client.entitlements.list(tenant_id=tenant_id, app_slug=slug).all()
    if not found:
        raise CliError(f"tenant {tenant} has no entitlement to {slug}", NOT_FOUND, hint="gpuaas entitlement list")
    return found[0].id
