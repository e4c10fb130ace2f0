"""Logging in and out."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from gpuaas_cli import config as configuration
from gpuaas_cli import output
from gpuaas_cli.config import Context
from gpuaas_cli.errors import USAGE, CliError
from gpuaas_cli.options import DEFAULTS, Options
from gpuaas_cli.session import find_target, open_session


async def login(
    *,
    email: Annotated[str | None, Parameter(help="Who logs in.")] = None,
    password_stdin: Annotated[bool, Parameter(negative="", help="Read the password from standard input.")] = False,
    service_account: Annotated[
        Path | None, Parameter(help="Use a service account's file instead of a person's password.")
    ] = None,
    options: Options = DEFAULTS,
) -> None:
    """Log in and remember the token in a named context.

    The password comes from a prompt on a terminal, from --password-stdin, or from GPUAAS_PASSWORD; without a
    terminal no question is ever asked.

    ```
    gpuaas login --api-url http://127.0.0.1:8470 --email admin@example.org
    echo "$PASSWORD" | gpuaas login --context ci --api-url URL --email ci@example.org --password-stdin
    gpuaas login --context bot --service-account bot.json
    ```
    """
    config = configuration.load()
    name = options.context or config.current or configuration.DEFAULT_CONTEXT
    known = config.contexts.get(name)
    if service_account is not None:
        context = await _login_account(service_account, options.api_url)
    else:
        api_url = options.api_url or (known.api_url if known else None)
        email = email or (known.email if known else None)
        if api_url is None or email is None:
            raise CliError("say where and who: --api-url URL --email EMAIL", USAGE)
        context = await _login_person(api_url.rstrip("/"), email, _read_password(email, from_stdin=password_stdin))
    kept = known.project if known and known.api_url == context.api_url else None
    context = replace(context, project=options.project or kept)
    configuration.save(config.with_context(name, context))
    if not output.document({"context": name, "api_url": context.api_url, "email": context.email}):
        who = context.email or service_account
        print(f"Logged in to {context.api_url} as {who} (context {name}).")


def _read_password(email: str, *, from_stdin: bool) -> str:
    if from_stdin:
        return sys.stdin.readline().rstrip("\r\n")
    if password := os.environ.get("GPUAAS_PASSWORD"):
        return password
    if not sys.stdin.isatty():
        raise CliError("no password: give it with --password-stdin or in GPUAAS_PASSWORD", USAGE)
    import getpass

    return getpass.getpass(f"Password of {email}: ")


async def _login_person(api_url: str, email: str, password: str) -> Context:
    from gpuaas_sdk.client import GpuaasClient
    from gpuaas_sdk.credentials import PasswordCredentials

    async with GpuaasClient(api_url, PasswordCredentials(email, password), user_agent="gpuaas-cli") as client:
        token = await client.fetch_token()
    return Context(api_url=api_url, email=email, token=token.access_token)


async def _login_account(file: Path, api_url: str | None) -> Context:
    from gpuaas_sdk.client import GpuaasClient

    path = file.expanduser().resolve()  # noqa: ASYNC240 - local disk
    async with GpuaasClient.from_service_account_file(path, api_url=api_url) as client:
        await client.principal()
        return Context(api_url=client.api_url, service_account_file=str(path))


def logout(*, options: Options = DEFAULTS) -> None:
    """Forget the token of the context; its address and project are kept."""
    config = configuration.load()
    target = find_target(options, config)
    if target.context is not None:
        forgotten = replace(target.context, token=None, service_account_file=None)
        configuration.save(config.with_context(target.name, forgotten, current=False))
    if not output.document({"context": target.name, "logged_in": False}):
        print(f"Logged out of {target.api_url} (context {target.name}).")


async def whoami(*, options: Options = DEFAULTS) -> None:
    """Who the platform takes you for, and what your roles are."""
    async with open_session(options) as session:
        principal = await session.client.principal()
    roles = [f"{m.role} ({m.project_id or m.tenant_id or 'platform'})" for m in principal.memberships]
    output.one(
        principal,
        {
            "name": principal.name,
            "kind": principal.kind,
            "id": principal.id,
            "roles": "\n".join(roles),
            "project": principal.project_id,
            "app": principal.app_slug,
            "platform": session.target.api_url,
            "context": session.target.name,
            "token until": principal.token_expires_at,
        },
    )
