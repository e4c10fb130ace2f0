"""Roles of people in tenants, projects and apps."""

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuaas_cli import output, resolve
from gpuaas_cli.errors import USAGE, CliError
from gpuaas_cli.inputs import merge
from gpuaas_cli.options import DEFAULTS, FromFile, Options, Yes, noun
from gpuaas_cli.prompts import confirm
from gpuaas_cli.session import open_session

if TYPE_CHECKING:
    from gpuaas_contract.identity import Membership

app = noun(__name__, __doc__)


def _where(membership: "Membership") -> str:
    return membership.project_id or membership.tenant_id or membership.app_slug or "platform"


def _show(membership: "Membership") -> None:
    output.one(
        membership,
        {
            "user": membership.user_email or membership.user_id,
            "role": membership.role,
            "where": _where(membership),
            "id": membership.id,
        },
    )


@app.command(name="list")
async def list_(
    *,
    user: Annotated[str | None, Parameter(help="Only roles of this user, by e-mail or id.")] = None,
    tenant: Annotated[str | None, Parameter(help="Only roles in this tenant.")] = None,
    all: Annotated[bool, Parameter(negative="", help="Roles in all projects, not only the chosen one.")] = False,
    options: Options = DEFAULTS,
) -> None:
    """List the roles that you may see, in the chosen project if there is one."""
    async with open_session(options) as session:
        chosen = session.target.project if tenant is None and not all else None
        found = await session.client.memberships.list(
            user_id=(await resolve.user(session, user)).id if user else None,
            tenant_id=(await resolve.tenant(session, tenant)).id if tenant else None,
            project_id=(await session.find_project(chosen)).id if chosen else None,
        ).all()
    columns = {
        "user": lambda m: m.user_email or m.user_id,
        "role": lambda m: m.role,
        "where": _where,
        "id": lambda m: m.id,
    }
    output.items(found, columns, empty="No memberships.")


@app.command
async def create(
    user: Annotated[str | None, Parameter(help="E-mail or id.")] = None,
    role: Annotated[str | None, Parameter(help="For example project_admin, project_member, tenant_admin.")] = None,
    /,
    *,
    tenant: Annotated[str | None, Parameter(help="The tenant of a tenant role.")] = None,
    app: Annotated[str | None, Parameter(name="--app", help="The app of an app_publisher.")] = None,
    from_file: FromFile = None,
    options: Options = DEFAULTS,
) -> None:
    """Give a user a role in a tenant (--tenant), a project (--project), an app (--app) or the platform.

    ```
    gpuaas membership create ada@example.org project_admin --project research
    gpuaas membership create bob@example.org tenant_admin --tenant acme
    gpuaas membership create eve@example.org app_publisher --app echo
    ```
    """
    async with open_session(options) as session:
        from gpuaas_contract.identity import MembershipCreate, Role

        if role is not None and role not in {known.value for known in Role}:
            raise CliError(f"there is no role {role!r} (roles: {', '.join(Role)})", USAGE)
        fields = merge(from_file, role=role, app_slug=app)
        if user is not None:
            fields["user_id"] = (await resolve.user(session, user)).id
        if tenant is not None:
            fields["tenant_id"] = (await resolve.tenant(session, tenant)).id
        elif str(fields.get("role", "")).startswith("project_") and "project_id" not in fields:
            fields["project_id"] = await session.project_id()
        body = MembershipCreate.model_validate(fields)
        made = await session.client.memberships.create(
            body.user_id, body.role, tenant_id=body.tenant_id, project_id=body.project_id, app_slug=body.app_slug
        )
    _show(made)


@app.command
async def delete(membership: str, /, *, yes: Yes = False, options: Options = DEFAULTS) -> None:
    """Take a role away, by its id (`gpuaas membership list`)."""
    confirm(f"Take away role {membership}?", membership, yes=yes)
    async with open_session(options) as session:
        _show(await session.client.memberships.delete(membership))
