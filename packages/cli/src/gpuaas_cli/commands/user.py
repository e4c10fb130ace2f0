"""People and their roles."""

import os
import sys
from typing import Annotated

from cyclopts import Parameter

from gpuaas_cli import output, resolve
from gpuaas_cli.errors import USAGE, CliError
from gpuaas_cli.options import DEFAULTS, Options, noun
from gpuaas_cli.session import open_session

app = noun("user", "People and their roles (operators).")


@app.command(name="list")
async def list_(*, options: Options = DEFAULTS) -> None:
    """List the people."""
    async with open_session(options) as session:
        found = await session.client.users.list().all()
    columns = {"email": lambda u: u.email, "id": lambda u: u.id, "created": lambda u: u.created_at}
    output.items(found, columns, empty="No users.")


@app.command
async def create(
    email: str,
    /,
    *,
    password_stdin: Annotated[bool, Parameter(negative="", help="Read the password from standard input.")] = False,
    options: Options = DEFAULTS,
) -> None:
    """Create a user. The password comes from a prompt, --password-stdin or GPUAAS_NEW_PASSWORD."""
    password = _new_password(email, from_stdin=password_stdin)
    async with open_session(options) as session:
        made = await session.client.users.create(email, password)
    output.one(made, {"email": made.email, "id": made.id})


def _new_password(email: str, *, from_stdin: bool) -> str:
    if from_stdin:
        return sys.stdin.readline().rstrip("\r\n")
    if password := os.environ.get("GPUAAS_NEW_PASSWORD"):
        return password
    if not sys.stdin.isatty():
        raise CliError("no password: give it with --password-stdin or in GPUAAS_NEW_PASSWORD", USAGE)
    import getpass

    password = getpass.getpass(f"New password of {email}: ")
    if getpass.getpass("Once more: ") != password:
        raise CliError("the two passwords differ", USAGE)
    return password


@app.command(name="grant")
async def grant(
    user: Annotated[str, Parameter(help="Email or id.")],
    role: Annotated[str, Parameter(help="For example project_admin, project_member, tenant_admin.")],
    /,
    *,
    tenant: Annotated[str | None, Parameter(help="The tenant of a tenant role.")] = None,
    options: Options = DEFAULTS,
) -> None:
    """Give a user a role: in a tenant (--tenant), in a project (--project), or on the platform.

    ```
    gpuaas user grant ada@example.org project_admin --project research
    gpuaas user grant bob@example.org tenant_admin --tenant acme
    ```
    """
    from gpuaas_contract.identity import Role

    try:
        wanted = Role(role)
    except ValueError:
        raise CliError(f"there is no role {role!r} (there is: {', '.join(Role)})", USAGE) from None
    async with open_session(options) as session:
        found = await resolve.user(session, user)
        tenant_id = (await resolve.tenant(session, tenant)).id if tenant else None
        in_project = tenant_id is None and wanted.startswith("project_")
        project_id = await session.project_id() if in_project else None
        made = await session.client.memberships.create(found.id, wanted, tenant_id=tenant_id, project_id=project_id)
    output.one(made, {"user": found.email, "role": made.role, "tenant": made.tenant_id, "project": made.project_id})
