"""Accounts for controllers and automation."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuaas_cli import output, resolve
from gpuaas_cli.errors import CONFLICT, NOT_FOUND, CliError
from gpuaas_cli.inputs import merge
from gpuaas_cli.options import DEFAULTS, FromFile, Options, Yes, noun
from gpuaas_cli.prompts import confirm
from gpuaas_cli.session import Session, open_session
from gpuaas_sdk.profile.config import write_private

if TYPE_CHECKING:
    from gpuaas_contract.identity import ServiceAccount, ServiceAccountKey
    from gpuaas_sdk.profile.target import Target

app = noun(__name__, __doc__)

InTenant = Annotated[str | None, Parameter(help="Of this tenant instead of the project.")]
File = Annotated[Path | None, Parameter(help="Where to write the credentials (default: NAME.json); mode 0600.")]


def _fields(account: "ServiceAccount") -> dict[str, object]:
    return {
        "name": account.name,
        "app": account.app_slug,
        "role": account.role,
        "disabled": account.disabled,
        "id": account.id,
    }


async def _find(session: Session, wanted: str, tenant: str | None) -> "ServiceAccount":
    from gpuaas_contract import ids

    if ids.is_id(wanted, ids.SERVICE_ACCOUNT):
        return await session.client.service_accounts.get(wanted)
    found = await _list(session, tenant)
    return resolve.pick("service-account", wanted, found, found)


async def _scope(session: Session, tenant: str | None) -> dict[str, str]:
    if tenant is not None:
        return {"tenant_id": (await resolve.tenant(session, tenant)).id}
    return {"project_id": await session.project_id()}


async def _list(session: Session, tenant: str | None) -> "list[ServiceAccount]":
    scope = await _scope(session, tenant)
    accounts = session.client.service_accounts
    return await accounts.list(project_id=scope.get("project_id"), tenant_id=scope.get("tenant_id")).all()


@app.command(name="list")
async def list_(*, tenant: InTenant = None, options: Options = DEFAULTS) -> None:
    """List the service accounts of the project, or of a tenant."""
    async with open_session(options) as session:
        found = await _list(session, tenant)
    columns = {
        "name": lambda a: a.name,
        "app": lambda a: a.app_slug,
        "role": lambda a: a.role,
        "disabled": lambda a: a.disabled,
        "id": lambda a: a.id,
    }
    output.items(found, columns, empty="No service accounts: gpuaas service-account create NAME")


@app.command
async def show(account: str, /, *, tenant: InTenant = None, options: Options = DEFAULTS) -> None:
    """Show one service account, by name or id."""
    async with open_session(options) as session:
        found = await _find(session, account, tenant)
    output.one(found, _fields(found))


@app.command
async def create(
    name: str | None = None,
    /,
    *,
    app: Annotated[str | None, Parameter(help="For a controller: the app whose operations it may claim.")] = None,
    role: Annotated[str | None, Parameter(help="For automation: its role, for example project_admin.")] = None,
    tenant: InTenant = None,
    file: File = None,
    from_file: FromFile = None,
    options: Options = DEFAULTS,
) -> None:
    """Create a service account and write its credentials to a file.

    The key pair is generated on this machine; only that file has the private key.

    ```
    gpuaas service-account create demo-controller --app demo --file demo.json
    gpuaas service-account create ci --role project_admin
    ```
    """
    private_pem, public_pem = _make_key()
    async with open_session(options) as session:
        from gpuaas_contract.identity import ServiceAccountCreate

        fields = merge(from_file, name=name, app_slug=app, role=role)
        if tenant is not None or not {"tenant_id", "project_id"} & set(fields):
            fields |= await _scope(session, tenant)
        body = ServiceAccountCreate.model_validate({**fields, "public_key_pem": public_pem})
        path = _new_file(file or Path(f"{body.name}.json"))
        made = await session.client.service_accounts.create(
            body.project_id,
            body.name,
            public_pem,
            tenant_id=body.tenant_id,
            app_slug=body.app_slug,
            role=body.role,
        )
        _write_credentials(path, made.id, private_pem, session.target)
    if not output.document({**made.model_dump(mode="json"), "file": str(path)}):
        output.pairs({**_fields(made), "credentials": path})


def _new_file(path: Path) -> Path:
    if path.exists():
        raise CliError(f"{path} already exists and may hold the only copy of a key", CONFLICT, hint="--file OTHER")
    return path


def _write_credentials(path: Path, account_id: str, private_pem: str, target: "Target") -> None:
    credentials = {"service_account_id": account_id, "private_key_pem": private_pem, "api_url": target.api_url}
    if target.ca_file is not None:
        from gpuaas_contract.trust import ca_file_of

        credentials["ca_file"] = str(ca_file_of(target.ca_file))
    write_private(path, json.dumps(credentials, indent=2) + "\n")


@app.command
async def disable(account: str, /, *, tenant: InTenant = None, yes: Yes = False, options: Options = DEFAULTS) -> None:
    """Disable an account: its tokens and streams end at once."""
    async with open_session(options) as session:
        found = await _find(session, account, tenant)
        confirm(f"Disable account {found.name}?", found.name, yes=yes)
        changed = await session.client.service_accounts.update(found.id, disabled=True)
    output.one(changed, _fields(changed))


@app.command
async def enable(account: str, /, *, tenant: InTenant = None, options: Options = DEFAULTS) -> None:
    """Enable a disabled account."""
    async with open_session(options) as session:
        found = await _find(session, account, tenant)
        changed = await session.client.service_accounts.update(found.id, disabled=False)
    output.one(changed, _fields(changed))


@app.command
async def delete(account: str, /, *, tenant: InTenant = None, yes: Yes = False, options: Options = DEFAULTS) -> None:
    """Delete an account with its keys and secrets."""
    async with open_session(options) as session:
        found = await _find(session, account, tenant)
        confirm(f"Delete account {found.name}?", found.name, yes=yes)
        deleted = await session.client.service_accounts.delete(found.id, revision=found.revision)
    output.one(deleted, _fields(deleted))


# At most two keys (or secrets) are valid at a time, so that a new one can be rolled out before the old one goes.


def _key_fields(key: "ServiceAccountKey") -> dict[str, object]:
    return {"id": key.id, "kind": key.kind, "kid": key.kid, "last used": key.last_used_at, "created": key.created_at}


@app.command
async def keys(account: str, /, *, tenant: InTenant = None, options: Options = DEFAULTS) -> None:
    """List the keys and secrets of an account."""
    async with open_session(options) as session:
        found = await _find(session, account, tenant)
        listed = await session.client.service_accounts.list_keys(found.id)
    columns = {
        "id": lambda k: k.id,
        "kind": lambda k: k.kind,
        "kid": lambda k: k.kid,
        "last used": lambda k: k.last_used_at,
        "created": lambda k: k.created_at,
    }
    output.items(list(listed), columns, empty="No keys: the account cannot log in.")


@app.command(name="add-key")
async def add_key(account: str, /, *, tenant: InTenant = None, file: File = None, options: Options = DEFAULTS) -> None:
    """Generate a key pair and write its credentials to a file.

    Revoke the old key once the new one is in use.
    """
    private_pem, public_pem = _make_key()
    async with open_session(options) as session:
        found = await _find(session, account, tenant)
        path = _new_file(file or Path(f"{found.name}.json"))
        key = await session.client.service_accounts.add_key(found.id, public_pem)
        _write_credentials(path, found.id, private_pem, session.target)
    if not output.document({**key.model_dump(mode="json"), "file": str(path)}):
        output.pairs({**_key_fields(key), "credentials": path})


@app.command(name="add-secret")
async def add_secret(account: str, /, *, tenant: InTenant = None, options: Options = DEFAULTS) -> None:
    """Generate a secret, for programs that cannot sign. It is shown once. Prefer a key."""
    async with open_session(options) as session:
        found = await _find(session, account, tenant)
        key = await session.client.service_accounts.add_secret(found.id)
    output.one(key, {**_key_fields(key), "client id": found.id, "secret": key.secret})


@app.command(name="revoke-key")
async def revoke_key(
    account: str, key: str, /, *, tenant: InTenant = None, yes: Yes = False, options: Options = DEFAULTS
) -> None:
    """Revoke a key or a secret, with all tokens of the account."""
    async with open_session(options) as session:
        found = await _find(session, account, tenant)
        if key not in {known.id for known in await session.client.service_accounts.list_keys(found.id)}:
            raise CliError(
                f"account {found.name} has no key {key!r}", NOT_FOUND, hint=f"gpuaas service-account keys {found.id}"
            )
        confirm(f"Revoke {key} of {found.name}?", found.name, yes=yes)
        revoked = await session.client.service_accounts.revoke_key(found.id, key)
    output.one(revoked, _key_fields(revoked))


def _make_key() -> tuple[str, str]:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return private.decode(), public.decode()
