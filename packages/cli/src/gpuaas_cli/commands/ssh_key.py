"""Your own SSH public keys, installed wherever you have a grant."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuaas_cli import output
from gpuaas_cli.errors import NOT_FOUND, USAGE, CliError
from gpuaas_cli.options import DEFAULTS, Options, noun
from gpuaas_cli.session import open_session

if TYPE_CHECKING:
    from gpuaas_contract.ssh_keys import SshKey

app = noun(__name__, __doc__)


def _show(key: "SshKey") -> None:
    output.one(
        key,
        {
            "name": key.name,
            "key": f"{key.key_type} {key.bits}",
            "fingerprint": key.fingerprint,
            "id": key.id,
            "added": key.created_at,
        },
    )


def _read_key(file: str) -> str:
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise CliError(f"cannot read {file}: {error}", USAGE) from None
    if "PRIVATE KEY" in text:
        raise CliError(f"{file} is a private key: never share it; add the public key", USAGE, hint=f"{file}.pub")
    return text


@app.command(name="list")
async def list_(*, options: Options = DEFAULTS) -> None:
    """List your SSH keys."""
    async with open_session(options) as session:
        found = await session.client.ssh_keys.list().all()
    columns = {
        "name": lambda k: k.name,
        "key": lambda k: f"{k.key_type} {k.bits}",
        "fingerprint": lambda k: k.fingerprint,
        "id": lambda k: k.id,
    }
    output.items(found, columns, empty="No keys: gpuaas ssh-key add NAME ~/.ssh/id_ed25519.pub")


@app.command
async def add(
    name: str,
    file: Annotated[str, Parameter(allow_leading_hyphen=True, help="The public key, or - for standard input.")],
    /,
    *,
    options: Options = DEFAULTS,
) -> None:
    """Add a public key. It works through the platform only (`gpuaas ssh-config`).

    ```
    gpuaas ssh-key add laptop ~/.ssh/id_ed25519.pub
    ```
    """
    text = _read_key(file)
    async with open_session(options) as session:
        made = await session.client.ssh_keys.add(name, text.strip())
    _show(made)


@app.command
async def remove(key: Annotated[str, Parameter(help="Name or id.")], /, *, options: Options = DEFAULTS) -> None:
    """Remove a key, also from all machines."""
    async with open_session(options) as session:
        found = [item async for item in session.client.ssh_keys.list() if key in (item.id, item.name)]
        if not found:
            raise CliError(f"you have no key {key!r}", NOT_FOUND, hint="gpuaas ssh-key list")
        _show(await session.client.ssh_keys.remove(found[0].id))
