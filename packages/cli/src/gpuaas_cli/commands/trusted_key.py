"""Public keys that verify the signatures of artifacts."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuaas_cli import output, resolve
from gpuaas_cli.commands.artifact import AppName, owner_of
from gpuaas_cli.errors import USAGE, CliError
from gpuaas_cli.options import DEFAULTS, Options, Yes, noun
from gpuaas_cli.prompts import confirm
from gpuaas_cli.session import Session, open_session

if TYPE_CHECKING:
    from gpuaas_contract.artifacts import TrustedKey

app = noun(__name__, __doc__)


def _show(key: "TrustedKey") -> None:
    fields = {"name": key.name, "algorithm": key.algorithm, "fingerprint": key.fingerprint, "id": key.id}
    output.one(key, fields | {"created": key.created_at})


async def _find(session: Session, wanted: str, app_name: str | None) -> "TrustedKey":
    from gpuaas_contract import ids

    if ids.is_id(wanted, ids.TRUSTED_KEY):
        return await session.client.trusted_keys.get(wanted)
    found = await session.client.trusted_keys.list(**await owner_of(session, app_name), limit=None).all()
    return resolve.pick("trusted-key", wanted, found, found)


@app.command
async def add(
    name: str,
    file: Annotated[Path, Parameter(help="Public key file (PEM, ECDSA P-256 or ed25519), for example cosign.pub.")],
    /,
    *,
    app_name: AppName = None,
    options: Options = DEFAULTS,
) -> None:
    """Trust the signatures of a key.

    ```
    openssl ec -in key.pem -pubout -out key.pub
    gpuaas trusted-key add builds key.pub
    ```
    """
    try:
        pem = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"cannot read {file}: {error}", USAGE) from None
    async with open_session(options) as session:
        made = await session.client.trusted_keys.add(name, pem, **await owner_of(session, app_name))
    _show(made)


@app.command(name="list")
async def list_(*, app_name: AppName = None, options: Options = DEFAULTS) -> None:
    """List the trusted keys of the project, or of an app."""
    async with open_session(options) as session:
        found = await session.client.trusted_keys.list(**await owner_of(session, app_name), limit=None).all()
    columns = {
        "name": lambda k: k.name,
        "algorithm": lambda k: k.algorithm,
        "fingerprint": lambda k: k.fingerprint,
        "id": lambda k: k.id,
    }
    output.items(found, columns, empty="No trusted keys: gpuaas trusted-key add NAME FILE")


@app.command
async def remove(key: str, /, *, app_name: AppName = None, yes: Yes = False, options: Options = DEFAULTS) -> None:
    """Stop trusting a key. Artifacts verified with it stay verified: retire them."""
    async with open_session(options) as session:
        found = await _find(session, key, app_name)
        confirm(f"Stop trusting {found.name}?", found.name, yes=yes)
        _show(await session.client.trusted_keys.delete(found.id, revision=found.revision))
