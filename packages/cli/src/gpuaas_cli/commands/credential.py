"""SSH keys for external machines. Private keys are never shown."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuaas_cli import output, resolve
from gpuaas_cli.errors import USAGE, CliError
from gpuaas_cli.inputs import merge
from gpuaas_cli.options import DEFAULTS, FromFile, Options, Yes, noun
from gpuaas_cli.prompts import confirm
from gpuaas_cli.session import open_session

if TYPE_CHECKING:
    from gpuaas_contract.credentials import Credential

app = noun(__name__, __doc__)

Generate = Annotated[
    bool,
    Parameter(name="--generate", negative="", help="Let the platform generate an ed25519 key; nobody ever sees it."),
]
KeyFile = Annotated[
    str | None,
    Parameter(
        name="--private-key",
        allow_leading_hyphen=True,
        help="An unencrypted OpenSSH private key, from a file or - for standard input.",
    ),
]


def _show(credential: "Credential") -> None:
    if output.document(credential):
        return
    output.pairs(
        {"name": credential.name, "status": credential.status, "id": credential.id, "created": credential.created_at}
    )
    output.heading("Versions")
    output.table(
        [
            [str(v.version), v.state, v.origin, f"{v.key_type} {v.bits}", v.fingerprint, output.text(v.created_at)]
            for v in credential.versions
        ],
        ["version", "state", "origin", "key", "fingerprint", "created"],
    )
    for version in credential.versions:
        if version.state == "valid":
            output.heading(f"Public key of version {version.version}")
            print(version.public_key)


def _key_from(generate: bool, file: str | None) -> str | None:
    """Read the key from the file; None where the platform generates one. Exactly one option must be given."""
    if generate == (file is not None):
        raise CliError("choose where the key comes from", USAGE, hint="--generate, or: --private-key FILE")
    if file is None:
        return None
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"cannot read {file}: {error}", USAGE) from None


@app.command(name="list")
async def list_(*, options: Options = DEFAULTS) -> None:
    """List the access credentials of the project."""
    async with open_session(options) as session:
        found = await session.client.credentials.list(project_id=await session.project_id()).all()
    columns = {
        "name": lambda c: c.name,
        "status": lambda c: c.status,
        "valid versions": lambda c: [v.version for v in c.versions if v.state == "valid"],
        "fingerprint": lambda c: c.versions[-1].fingerprint,
        "id": lambda c: c.id,
    }
    output.items(found, columns, empty="No credentials: gpuaas credential create NAME --generate")


@app.command
async def show(credential: str, /, *, options: Options = DEFAULTS) -> None:
    """Show one credential with its public keys, by name or id."""
    async with open_session(options) as session:
        _show(await resolve.credential(session, credential))


@app.command
async def create(
    name: str | None = None,
    /,
    *,
    generate: Generate = False,
    private_key: KeyFile = None,
    from_file: FromFile = None,
    options: Options = DEFAULTS,
) -> None:
    """Store an SSH key for external machines.

    ```
    gpuaas credential create lab --generate
    gpuaas credential create lab --private-key ~/.ssh/lab
    ```
    """
    fields = merge(from_file, name=name)
    if generate or private_key is not None or "private_key" not in fields:
        fields["private_key"] = _key_from(generate, private_key)
    async with open_session(options) as session:
        from gpuaas_contract.credentials import CredentialCreate

        if options.project is not None or "project_id" not in fields:
            fields["project_id"] = await session.project_id()
        body = CredentialCreate.model_validate(fields)
        key = None if body.private_key is None else body.private_key.get_secret_value()
        made = await session.client.credentials.create(body.project_id, body.name, private_key=key)
    _show(made)


@app.command
async def rotate(
    credential: str,
    /,
    *,
    generate: Generate = False,
    private_key: KeyFile = None,
    options: Options = DEFAULTS,
) -> None:
    """Add a new key version.

    The old version stays valid until it is ended, so that access is never lost.
    """
    key = _key_from(generate, private_key)
    async with open_session(options) as session:
        found = await resolve.credential(session, credential)
        rotated = await session.client.credentials.rotate(found.id, private_key=key)
    _show(rotated)
    old = next(v.version for v in rotated.versions if v.state == "valid")
    output.note(f"Once all machines have the new public key: gpuaas credential end-version {rotated.name} {old}")


@app.command(name="end-version")
async def end_version(credential: str, version: int, /, *, yes: Yes = False, options: Options = DEFAULTS) -> None:
    """End one of two valid versions and destroy its key."""
    async with open_session(options) as session:
        found = await resolve.credential(session, credential)
        confirm(f"End version {version} of {found.name}?", found.name, yes=yes)
        ended = await session.client.credentials.end_version(found.id, version)
    _show(ended)


@app.command
async def revoke(credential: str, /, *, yes: Yes = False, options: Options = DEFAULTS) -> None:
    """Revoke a credential: deliveries stop at once and its keys are destroyed. This cannot be undone."""
    async with open_session(options) as session:
        found = await resolve.credential(session, credential)
        confirm(f"Revoke {found.name} and destroy its keys?", found.name, yes=yes)
        revoked = await session.client.credentials.revoke(found.id)
    _show(revoked)


@app.command
async def delete(credential: str, /, *, yes: Yes = False, options: Options = DEFAULTS) -> None:
    """Delete a credential with its keys. Its name becomes free."""
    async with open_session(options) as session:
        found = await resolve.credential(session, credential)
        confirm(f"Delete {found.name} and destroy its keys?", found.name, yes=yes)
        deleted = await session.client.credentials.delete(found.id, revision=found.revision)
    _show(deleted)
