"""Run-time secrets of app instances. Values are shown by `read` only."""

from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuaas_cli import output, resolve
from gpuaas_cli.errors import USAGE, CliError
from gpuaas_cli.options import DEFAULTS, Options, Yes, noun
from gpuaas_cli.prompts import confirm, read_password
from gpuaas_cli.session import Session, open_session

if TYPE_CHECKING:
    from gpuaas_contract.secrets import Secret

app = noun(__name__, __doc__)

Of = Annotated[str | None, Parameter(name="--instance", help="The instance; required with a name.")]


def _show(secret: "Secret") -> None:
    if output.document(secret):
        return
    output.pairs(
        {
            "name": secret.name,
            "kind": secret.spec.kind,
            "size": secret.spec.size,
            "readable by": ", ".join(secret.readable_by) or "nobody",
            "instance": secret.instance_id,
            "id": secret.id,
        }
    )
    output.heading("Versions")
    rows = [[str(v.version), v.state, output.text(v.created_at), output.text(v.ended_at)] for v in secret.versions]
    output.table(rows, ["version", "state", "created", "ended"])


async def _find(session: Session, wanted: str, instance: str | None) -> "Secret":
    from gpuaas_contract import ids

    if ids.is_id(wanted, ids.SECRET):
        return await session.client.secrets.get(wanted)
    if instance is None:
        raise CliError(
            f"cannot find secret {wanted!r} by name without its instance",
            USAGE,
            hint="--instance NAME, or the secret's id",
        )
    found = await session.client.secrets.list((await resolve.instance(session, instance)).id).all()
    return resolve.pick("secret", wanted, found, found)


@app.command(name="list")
async def list_(instance: str, /, *, options: Options = DEFAULTS) -> None:
    """List the secrets of an instance."""
    async with open_session(options) as session:
        found = await session.client.secrets.list((await resolve.instance(session, instance)).id).all()
    columns = {
        "name": lambda s: s.name,
        "kind": lambda s: s.spec.kind,
        "size": lambda s: s.spec.size,
        "version": lambda s: s.versions[-1].version,
        "made": lambda s: s.versions[-1].created_at,
        "readable by": lambda s: s.readable_by,
        "id": lambda s: s.id,
    }
    output.items(found, columns, empty="No secrets for this instance yet.")


@app.command
async def show(secret: str, /, *, instance: Of = None, options: Options = DEFAULTS) -> None:
    """Show one secret without its value, by id or by name in an instance."""
    async with open_session(options) as session:
        _show(await _find(session, secret, instance))


@app.command
async def rotate(secret: str, /, *, instance: Of = None, yes: Yes = False, options: Options = DEFAULTS) -> None:
    """Generate a new value.

    The app gets it with its next lease. The old value stays available until the next rotation.
    """
    async with open_session(options) as session:
        found = await _find(session, secret, instance)
        confirm(f"Generate a new value for {found.name}?", found.name, yes=yes)
        _show(await session.client.secrets.rotate(found.id, revision=found.revision))


@app.command
async def read(
    instance: str,
    name: str,
    /,
    *,
    version: Annotated[int | None, Parameter(help="Version; the newest one by default.")] = None,
    password_stdin: Annotated[bool, Parameter(negative="", help="Read your password from standard input.")] = False,
    options: Options = DEFAULTS,
) -> None:
    """Print the value of a secret that the app lets people of your role read.

    Asks for your password again on a terminal; otherwise takes it from --password-stdin or GPUAAS_PASSWORD. Each
    reading is in the audit trail. Bytes are printed in base64. After a rotation, an app may use the version before
    until its next operation.

    ```
    gpuaas secret read first token
    echo "$PASSWORD" | gpuaas secret read first token --password-stdin >token
    ```
    """
    async with open_session(options) as session:
        found = await resolve.instance(session, instance)
        email = session.target.context.email if session.target.context else None
        prompt = f"Password of {email}: " if email else "Your password: "
        password = read_password(prompt, "GPUAAS_PASSWORD", from_stdin=password_stdin)
        if not password:
            raise CliError(
                "the password is empty", USAGE, hint="type your own password, or give it with --password-stdin"
            )
        answer = await session.client.secrets.read(found.id, name, password, version=version)
    if output.document(answer):
        return
    print(output.clean(answer.value or ""))
    output.note(f"version {answer.version} of {answer.name}, in {answer.encoding}")
