"""Log in and out, and change the password."""

import os
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from cyclopts import Parameter

from gpuaas_cli import output
from gpuaas_cli.errors import USAGE, CliError
from gpuaas_cli.options import DEFAULTS, Options
from gpuaas_cli.prompts import read_new_password, read_password
from gpuaas_cli.session import find_target, open_session, quiet_httpx
from gpuaas_sdk.profile import config as configuration
from gpuaas_sdk.profile import logins
from gpuaas_sdk.profile.config import Context

CLIENT = "gpuaas-cli"


async def login(
    *,
    email: Annotated[str | None, Parameter(help="Log in with the password of this account.")] = None,
    password_stdin: Annotated[bool, Parameter(negative="", help="Read the password from standard input.")] = False,
    device: Annotated[bool, Parameter(negative="", help="Approve in a browser, also without a terminal.")] = False,
    service_account: Annotated[Path | None, Parameter(help="Log in with a service account's file.")] = None,
    options: Options = DEFAULTS,
) -> None:
    """Log in and save the login in a context.

    On a terminal, prints a code to approve in a browser. With --email, reads the password from a prompt,
    --password-stdin or GPUAAS_PASSWORD. Without a terminal, asks nothing.

    ```
    gpuaas login --api-url http://127.0.0.1:8470
    echo "$PASSWORD" | gpuaas login --context ci --api-url URL --email ci@example.org --password-stdin
    gpuaas login --context bot --service-account bot.json
    ```
    """
    quiet_httpx()
    config = configuration.load()
    name = options.context or config.current or configuration.DEFAULT_CONTEXT
    known = config.contexts.get(name)
    if service_account is not None:
        context = await _login_account(service_account, options.api_url, _absolute(options.ca_file))
    else:
        api_url = options.api_url or (known.api_url if known else None)
        if api_url is None:
            raise CliError("no platform given", USAGE, hint="gpuaas login --api-url URL")
        api_url = api_url.rstrip("/")
        _warn_of_plain_http(api_url)
        kept_file = known.ca_file if known and known.api_url == api_url else None
        ca_file = _absolute(options.ca_file) or kept_file
        with_password = email is not None or password_stdin or "GPUAAS_PASSWORD" in os.environ
        if device or (not with_password and sys.stdin.isatty()):
            context = await _login_device(api_url, ca_file)
        else:
            email = email or (known.email if known else None)
            if email is None:
                raise CliError("no account given", USAGE, hint="--email EMAIL, or --device to approve in a browser")
            password = read_password(f"Password of {email}: ", "GPUAAS_PASSWORD", from_stdin=password_stdin)
            context = await _login_person(api_url, ca_file, email, password)
    kept = known.project if known and known.api_url == context.api_url else None
    logins.keep(name, replace(context, project=options.project or kept))
    await _save_receipt_keys(context)
    if not output.document({"context": name, "api_url": context.api_url, "email": context.email}):
        who = context.email or service_account
        print(f"Logged in to {context.api_url} as {who} (context {name}).")


async def _save_receipt_keys(context: Context) -> None:
    """Trust the keys that the platform signs receipts with. A login does not fail for want of them."""
    from gpuaas_sdk.client import GpuaasClient
    from gpuaas_sdk.credentials import StaticToken
    from gpuaas_sdk.errors import GpuaasError
    from gpuaas_sdk.profile import receipt_keys
    from gpuaas_sdk.profile.errors import ProfileError
    from gpuaas_sdk.retry import NO_RETRY

    with suppress(GpuaasError, ProfileError, OSError):
        async with GpuaasClient(
            context.api_url, StaticToken(""), retry=NO_RETRY, user_agent=CLIENT, ca_file=context.ca_file
        ) as client:
            receipt_keys.save(context.api_url, (await client.receipts.keys()).items)


def _warn_of_plain_http(api_url: str) -> None:
    from gpuaas_contract.trust import is_loopback

    parts = urlsplit(api_url)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        output.note(f"warning: {api_url} is plain http: your password and tokens can be read on the way")


def _absolute(ca_file: str | None) -> str | None:
    """The context keeps the file's whole path, so that it is found from any directory."""
    from gpuaas_contract.trust import ca_file_of

    found = ca_file_of(ca_file)
    return None if found is None else str(found)


async def _login_person(api_url: str, ca_file: str | None, email: str, password: str) -> Context:
    from gpuaas_sdk.client import GpuaasClient
    from gpuaas_sdk.credentials import PasswordCredentials

    credentials = PasswordCredentials(email, password, renewable_login=True)
    async with GpuaasClient(api_url, credentials, user_agent=CLIENT, ca_file=ca_file) as client:
        token = await client.fetch_token()
    return logins.with_token(Context(api_url=api_url, email=email, ca_file=ca_file), token)


async def _login_device(api_url: str, ca_file: str | None) -> Context:
    from gpuaas_sdk.client import GpuaasClient
    from gpuaas_sdk.credentials import StaticToken
    from gpuaas_sdk.device import DeviceLogin
    from gpuaas_sdk.errors import NotFoundError

    try:
        async with DeviceLogin(api_url, CLIENT, ca_file=ca_file) as device:
            asked = await device.start()
            output.note(f"Open {asked.verification_uri_complete}")
            output.note(f"and approve the code {output.style(asked.user_code, 'bold', sys.stderr)}.")
            output.note(f"In a browser elsewhere: open {asked.verification_uri} and type the code.")
            token = await device.wait(asked)
    except NotFoundError:
        raise CliError(
            "this platform has no login through a browser", USAGE, hint="gpuaas login --email EMAIL"
        ) from None
    credentials = StaticToken(token.access_token)
    async with GpuaasClient(api_url, credentials, user_agent=CLIENT, ca_file=ca_file) as client:
        principal = await client.principal()
    return logins.with_token(Context(api_url=api_url, email=principal.name, ca_file=ca_file), token)


async def _login_account(file: Path, api_url: str | None, ca_file: str | None) -> Context:
    from gpuaas_sdk.client import GpuaasClient

    path = file.expanduser().resolve()  # noqa: ASYNC240 - local disk
    async with GpuaasClient.from_service_account_file(path, api_url=api_url, ca_file=ca_file) as client:
        await client.principal()
        trusted = None if client.ca_file is None else str(client.ca_file)
        return Context(api_url=client.api_url, service_account_file=str(path), ca_file=trusted)


async def logout(*, options: Options = DEFAULTS) -> None:
    """Log out, here and on the platform. The context's address and project stay."""
    quiet_httpx()
    config = configuration.load()
    target = find_target(options, config)
    if target.context is not None:
        await _revoke(target.name, target.context)
        logins.forget(target.name)
    if not output.document({"context": target.name, "logged_in": False}):
        print(f"Logged out of {target.api_url} (context {target.name}).")


async def _revoke(name: str, context: Context) -> None:
    """Revoke the token if the platform answers; logging out works without it."""
    from gpuaas_sdk.client import GpuaasClient
    from gpuaas_sdk.credentials import StaticToken
    from gpuaas_sdk.errors import GpuaasError
    from gpuaas_sdk.retry import NO_RETRY

    with suppress(CliError, GpuaasError):
        kept = logins.load_tokens(name, context)
        if token := kept.refresh_token or kept.token:
            async with GpuaasClient(
                context.api_url, StaticToken(""), retry=NO_RETRY, user_agent=CLIENT, ca_file=context.ca_file
            ) as client:
                await client.revoke_token(token)


async def password(
    *,
    password_stdin: Annotated[
        bool, Parameter(negative="", help="Read the old and the new password from standard input, one per line.")
    ] = False,
    options: Options = DEFAULTS,
) -> None:
    """Change your password. All your logins end: log in again."""
    old = read_password("Your current password: ", "GPUAAS_PASSWORD", from_stdin=password_stdin)
    new = read_new_password("yours", from_stdin=password_stdin)
    async with open_session(options) as session:
        user = await session.client.sessions.change_password(old, new)
    output.one(user, {"email": user.email, "password": "changed; log in again: gpuaas login"})


async def whoami(*, options: Options = DEFAULTS) -> None:
    """Show who you are logged in as, and your roles."""
    async with open_session(options) as session:
        principal = await session.client.principal()
    roles = [f"{m.role} ({m.project_id or m.tenant_id or 'platform'})" for m in principal.memberships]
    output.one(
        principal,
        {
            "name": principal.name,
            "kind": principal.kind,
            "id": principal.id,
            "roles": "\n".join(roles) or principal.role,
            "tenant": principal.tenant_id,
            "project": principal.project_id,
            "app": principal.app_slug,
            "platform": session.target.api_url,
            "context": session.target.name,
            "token until": principal.token_expires_at,
        },
    )
