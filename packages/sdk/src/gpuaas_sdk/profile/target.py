"""Which platform is meant, and who we are there: a flag wins over the environment, which wins over the file."""

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuaas_contract.trust import CA_FILE_SETTING
from gpuaas_sdk.profile.config import DEFAULT_CONTEXT, Config, Context
from gpuaas_sdk.profile.errors import ProfileError, Wrong

if TYPE_CHECKING:
    from gpuaas_sdk.credentials import Credentials


@dataclass(frozen=True)
class Target:
    """The settings that flags, environment and file add up to."""

    name: str
    context: Context | None
    api_url: str
    project: str | None
    ca_file: str | None = None


def find_target(
    config: Config,
    *,
    context: str | None = None,
    api_url: str | None = None,
    project: str | None = None,
    ca_file: str | None = None,
) -> Target:
    name = context or config.current or DEFAULT_CONTEXT
    found = config.contexts.get(name)
    if context is not None and found is None:
        known = ", ".join(config.contexts) or "none"
        raise ProfileError(
            f"there is no context {name!r} (known: {known})", Wrong.NOT_FOUND, hint="gpuaas context list"
        )
    url = api_url or (found.api_url if found else None)
    if url is None:
        raise ProfileError(
            "no platform is known", Wrong.USAGE, hint="gpuaas login --api-url URL --email EMAIL (or set GPUAAS_API_URL)"
        )
    url = url.rstrip("/")
    chosen = ca_file or os.environ.get(CA_FILE_SETTING) or _ca_file_of(found, url)
    return Target(name, found, url, project or (found.project if found else None), chosen)


def _ca_file_of(context: Context | None, url: str) -> str | None:
    """A context's authorities are trusted for its own platform only."""
    return context.ca_file if context is not None and context.api_url.rstrip("/") == url else None


def find_credentials(target: Target) -> "Credentials":
    from gpuaas_sdk.credentials import ServiceAccountCredentials, StaticToken

    if token := os.environ.get("GPUAAS_TOKEN"):
        return StaticToken(token)
    context = target.context
    # A remembered token goes to the platform that gave it, and to no other address.
    if context is not None and context.api_url.rstrip("/") == target.api_url:
        if context.service_account_file:
            return ServiceAccountCredentials.from_file(context.service_account_file)
        if context.token or context.in_keyring:
            from gpuaas_sdk.profile.logins import StoredLogin

            return StoredLogin(target.name)
    raise ProfileError(
        f"you are not logged in to {target.api_url}",
        Wrong.NOT_LOGGED_IN,
        hint=f"gpuaas login --api-url {target.api_url}",
    )
