"""Service accounts: the key is made here, and only its public half is sent."""

import json
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from gpuaas_cli import output
from gpuaas_cli.config import write_private
from gpuaas_cli.errors import CONFLICT, CliError
from gpuaas_cli.options import DEFAULTS, Options, noun
from gpuaas_cli.session import open_session

app = noun("service-account", "Accounts for controllers and automation.")


@app.command(name="list")
async def list_(*, options: Options = DEFAULTS) -> None:
    """List the service accounts of the project."""
    async with open_session(options) as session:
        found = await session.client.service_accounts.list(project_id=await session.project_id()).all()
    columns = {"name": lambda a: a.name, "app": lambda a: a.app_slug, "id": lambda a: a.id}
    output.items(found, columns, empty="No service accounts in this project.")


@app.command
async def create(
    name: str,
    /,
    *,
    app: Annotated[str | None, Parameter(help="The app whose operations it may claim: a controller's account.")] = None,
    file: Annotated[
        Path | None, Parameter(help="Where to write the credentials (default: NAME.json); mode 0600.")
    ] = None,
    options: Options = DEFAULTS,
) -> None:
    """Create a service account and write its credentials to a file.

    The key pair is made on this machine; the private key exists in that file and nowhere else.

    ```
    gpuaas service-account create demo-controller --app demo --file demo.json
    ```
    """
    path = file or Path(f"{name}.json")
    if path.exists():
        raise CliError(f"{path} exists already, and may hold the only copy of a key", CONFLICT, hint="--file OTHER")
    private_pem, public_pem = _make_key()
    async with open_session(options) as session:
        made = await session.client.service_accounts.create(await session.project_id(), name, public_pem, app_slug=app)
        credentials = {
            "service_account_id": made.id,
            "private_key_pem": private_pem,
            "api_url": session.target.api_url,
        }
    write_private(path, json.dumps(credentials, indent=2) + "\n")
    if not output.document({**made.model_dump(mode="json"), "file": str(path)}):
        output.pairs({"name": made.name, "app": made.app_slug, "id": made.id, "credentials": path})


def _make_key() -> tuple[str, str]:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return private.decode(), public.decode()
