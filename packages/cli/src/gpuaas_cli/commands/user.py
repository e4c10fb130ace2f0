"""People (operators)."""

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuaas_cli import output, resolve
from gpuaas_cli.commands import membership
from gpuaas_cli.errors import USAGE, CliError
from gpuaas_cli.inputs import merge
from gpuaas_cli.options import DEFAULTS, FromFile, Options, Yes, noun
from gpuaas_cli.prompts import confirm, read_new_password
from gpuaas_cli.session import open_session

if TYPE_CHECKING:
    from gpuaas_contract.identity import User

app = noun(__name__, __doc__)
app.command(membership.create, name="grant")

PasswordStdin = Annotated[bool, Parameter(negative="", help="Read the password from standard input.")]


def _show(user: "User") -> None:
    output.one(
        user,
        {
            "email": user.email,
            "id": user.id,
            "disabled": user.disabled,
            "one-time password": user.password_change_required,
            "created": user.created_at,
        },
    )


@app.command(name="list")
async def list_(*, options: Options = DEFAULTS) -> None:
    """List the users."""
    async with open_session(options) as session:
        found = await session.client.users.list().all()
    columns = {
        "email": lambda u: u.email,
        "disabled": lambda u: u.disabled,
        "id": lambda u: u.id,
        "created": lambda u: u.created_at,
    }
    output.items(found, columns, empty="No users.")


@app.command
async def show(user: str, /, *, options: Options = DEFAULTS) -> None:
    """Show one user, by e-mail or id."""
    async with open_session(options) as session:
        _show(await resolve.user(session, user))


@app.command
async def create(
    email: str | None = None,
    /,
    *,
    password_stdin: PasswordStdin = False,
    one_time: Annotated[bool, Parameter(negative="", help="The password works for one login.")] = False,
    from_file: FromFile = None,
    options: Options = DEFAULTS,
) -> None:
    """Create a user.

    Reads the password from a prompt, --password-stdin, GPUAAS_NEW_PASSWORD or --from-file.
    """
    fields = merge(from_file, email=email, password_change_required=one_time or None)
    if "email" not in fields:
        raise CliError("no e-mail address given", USAGE, hint="gpuaas user create EMAIL")
    if "password" not in fields:
        fields["password"] = read_new_password(fields["email"], from_stdin=password_stdin)
    async with open_session(options) as session:
        from gpuaas_contract.identity import UserCreate

        body = UserCreate.model_validate(fields)
        made = await session.client.users.create(
            body.email,
            body.password.get_secret_value(),
            password_change_required=body.password_change_required,
        )
    _show(made)


@app.command(name="reset-password")
async def reset_password(user: str, /, *, password_stdin: PasswordStdin = False, options: Options = DEFAULTS) -> None:
    """Set a new password that works for one login. All logins of the user end."""
    password = read_new_password(user, from_stdin=password_stdin)
    async with open_session(options) as session:
        found = await resolve.user(session, user)
        _show(await session.client.users.update(found.id, password=password))


@app.command
async def disable(user: str, /, *, yes: Yes = False, options: Options = DEFAULTS) -> None:
    """Disable a user: all their logins and streams end at once."""
    async with open_session(options) as session:
        found = await resolve.user(session, user)
        confirm(f"Disable {found.email}?", found.email, yes=yes)
        _show(await session.client.users.update(found.id, disabled=True))


@app.command
async def enable(user: str, /, *, options: Options = DEFAULTS) -> None:
    """Enable a disabled user."""
    async with open_session(options) as session:
        found = await resolve.user(session, user)
        _show(await session.client.users.update(found.id, disabled=False))


@app.command
async def delete(user: str, /, *, yes: Yes = False, options: Options = DEFAULTS) -> None:
    """Delete a user with all their roles."""
    async with open_session(options) as session:
        found = await resolve.user(session, user)
        confirm(f"Delete user {found.email}?", found.email, yes=yes)
        _show(await session.client.users.delete(found.id, revision=found.revision))
