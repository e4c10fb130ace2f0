"""Where the tokens of a login are kept: in the desktop's keyring where there is one, else in the file (0600).

A login from the device flow renews its token. The refresh token works once, so processes take turns: one renews,
the others find what it kept."""

import asyncio
import json
import os
import time
from collections.abc import Coroutine
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpuaas_sdk.profile import config as configuration
from gpuaas_sdk.profile.config import Config, Context
from gpuaas_sdk.profile.errors import ProfileError, Wrong

if TYPE_CHECKING:
    from gpuaas_contract.identity import Token
    from gpuaas_sdk.credentials import TokenRoutes

KEYRING_SERVICE = "gpuaas"
STILL_GOOD_SECONDS = 30
FINISH_SECONDS = 5
"""How long a cancelled command waits for the answer to a renewal that it has sent."""
_TOKENS = ("token", "token_expires_at", "refresh_token")


def with_token(context: Context, token: "Token") -> Context:
    return replace(
        context,
        token=token.access_token,
        token_expires_at=time.time() + token.expires_in,
        refresh_token=token.refresh_token,
    )


def keep(name: str, context: Context) -> None:
    """Make it the current context, whatever others have changed in the file meanwhile."""
    with configuration.changing():
        _keep(configuration.load(), name, context, current=True)


def _keep(config: Config, name: str, context: Context, *, current: bool) -> None:
    """Tokens go where they are safest; the rest of the context goes into the file."""
    keyring = _find_keyring()
    if keyring is not None and context.token is not None:
        secret = json.dumps({key: getattr(context, key) for key in _TOKENS})
        try:
            keyring.set_password(KEYRING_SERVICE, _entry(name, context), secret)
            context = replace(context, token=None, token_expires_at=None, refresh_token=None, in_keyring=True)
        except Exception:  # noqa: BLE001 - keyrings fail in their own ways: the file is there for that
            context = replace(context, in_keyring=None)
    else:
        context = replace(context, in_keyring=None)
    configuration.save(config.with_context(name, context, current=current))


def load_tokens(name: str, context: Context) -> Context:
    if not context.in_keyring:
        return context
    keyring = _find_keyring()
    secret = keyring.get_password(KEYRING_SERVICE, _entry(name, context)) if keyring is not None else None
    if not secret:
        raise ProfileError(
            f"the keyring holds no login for {context.api_url}", Wrong.NOT_LOGGED_IN, hint="gpuaas login"
        )
    return replace(context, **json.loads(secret))


def forget(name: str) -> None:
    with configuration.changing():
        config = configuration.load()
        if (context := config.contexts.get(name)) is not None:
            _forget(config, name, context)


def _forget(config: Config, name: str, context: Context) -> None:
    if context.in_keyring and (keyring := _find_keyring()) is not None:
        keyring.delete_password(KEYRING_SERVICE, _entry(name, context))
    empty = replace(
        context, token=None, token_expires_at=None, refresh_token=None, in_keyring=None, service_account_file=None
    )
    configuration.save(config.with_context(name, empty, current=False))


def _entry(name: str, context: Context) -> str:
    return f"{name} {context.api_url}"


def _find_keyring() -> Any:
    """The keyring library with a store behind it that protects what it holds; else nothing."""
    if os.environ.get("GPUAAS_KEYRING") == "0":
        return None
    try:
        import keyring  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return None
    return keyring if keyring.get_keyring().priority >= 1 else None


class StoredLogin:
    """The kept token while it is good, else a new one where the login can be renewed."""

    renewable = True

    def __init__(self, context_name: str) -> None:
        self._name = context_name
        self._used: str | None = None

    async def fetch(self, routes: "TokenRoutes") -> "Token":
        context = self._read()
        if not self._is_good(context):
            context = await _finished(self._renew_in_turn(routes))
        from gpuaas_contract.identity import Token

        assert context.token is not None
        self._used = context.token
        left = (context.token_expires_at or time.time() + 3600) - time.time()
        return Token(access_token=context.token, expires_in=max(1, int(left)))

    def _read(self) -> Context:
        context = configuration.load().contexts.get(self._name)
        if context is None or not (context.token or context.in_keyring):
            raise ProfileError(f"context {self._name} was logged out", Wrong.NOT_LOGGED_IN, hint="gpuaas login")
        return load_tokens(self._name, context)

    def _is_good(self, context: Context) -> bool:
        """One that was handed out before came back refused: it is not good, whatever its time says."""
        if context.token is None or context.token == self._used:
            return False
        expires_at = context.token_expires_at
        if expires_at is None or context.refresh_token is None:
            return True
        return expires_at - time.time() > STILL_GOOD_SECONDS

    async def _renew_in_turn(self, routes: "TokenRoutes") -> Context:
        async with configuration.changing_async():
            context = self._read()
            return context if self._is_good(context) else await self._renew(routes, context)

    async def _renew(self, routes: "TokenRoutes", context: Context) -> Context:
        if context.refresh_token is None:
            raise ProfileError(f"your login to {context.api_url} has ended", Wrong.NOT_LOGGED_IN, hint="gpuaas login")
        token = await routes.exchange_refresh_token(context.refresh_token)
        renewed = with_token(context, token)
        _keep(configuration.load(), self._name, renewed, current=False)
        return renewed


async def _finished(renewal: Coroutine[Any, Any, Context]) -> Context:
    """Wait for a renewal also when cancelled: a refresh token whose answer was not kept ends the login."""
    task = asyncio.ensure_future(renewal)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait({task}, timeout=FINISH_SECONDS)
        raise
