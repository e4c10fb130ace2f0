"""Credentials of the client: a person's password, a service account's key, or a token from elsewhere."""

import json
import secrets
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Protocol

from gpuaas_contract.identity import LoginRequest, Token

TOKEN_AUDIENCE = "gpuaas"  # noqa: S105 - the name of the audience
ASSERTION_SECONDS = 50
"""Less than the 60 seconds that the platform accepts, which leaves room for clocks that differ a little."""


class TokenRoutes(Protocol):
    """The anonymous routes that turn credentials into a token."""

    async def login(self, request: LoginRequest) -> Token: ...

    async def exchange_assertion(self, assertion: str) -> Token: ...

    async def exchange_secret(self, service_account_id: str, secret: str) -> Token: ...

    async def exchange_refresh_token(self, refresh_token: str) -> Token: ...


class Credentials(Protocol):
    renewable: bool
    """Whether another call of `fetch` can give a better token."""

    async def fetch(self, routes: TokenRoutes) -> Token: ...


class StaticToken:
    """A token from elsewhere. It cannot be renewed: its refusal reaches the caller."""

    renewable = False

    def __init__(self, token: str) -> None:
        self._token = token

    async def fetch(self, routes: TokenRoutes) -> Token:
        return Token(access_token=self._token, expires_in=365 * 86_400)


class PasswordCredentials:
    renewable = True

    def __init__(self, email: str, password: str, *, renewable_login: bool = False) -> None:
        """With `renewable_login`, tokens come with a refresh token, for whoever keeps that instead of the password."""
        self.email = email
        self._password = password
        # Left out where it is not wanted, so that a platform from before it understands the request.
        self._more = {"renewable": True} if renewable_login else {}

    async def fetch(self, routes: TokenRoutes) -> Token:
        login = {"email": self.email, "password": self._password, **self._more}
        return await routes.login(LoginRequest.model_validate(login))


class ServiceAccountCredentials:
    """OAuth 2 client credentials with a signed assertion: the private key never leaves this process."""

    renewable = True

    def __init__(
        self, service_account_id: str, private_key_pem: str, *, api_url: str | None = None, ca_file: str | None = None
    ) -> None:
        self.service_account_id = service_account_id
        self.api_url = api_url
        self.ca_file = ca_file
        self._private_key_pem = private_key_pem

    @classmethod
    def from_file(cls, path: str | Path) -> "ServiceAccountCredentials":
        """Read the file that `gpuaas service-account create` wrote."""
        try:
            content = json.loads(Path(path).read_text())
            return cls(
                content["service_account_id"],
                content["private_key_pem"],
                api_url=content.get("api_url"),
                ca_file=content.get("ca_file"),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} is not a service account file: {error!r}") from None

    def assertion(self) -> str:
        # Imported here: people's commands never need it, and their start-up time counts.
        from joserfc import jwt
        from joserfc.jwk import OKPKey

        now = int(time.time())
        claims: dict[str, str | int] = {
            "iss": self.service_account_id,
            "sub": self.service_account_id,
            "aud": TOKEN_AUDIENCE,
            "iat": now,
            "exp": now + ASSERTION_SECONDS,
            "jti": secrets.token_urlsafe(16),
        }
        key = OKPKey.import_key(self._private_key_pem)
        return jwt.encode({"alg": "Ed25519"}, claims, key, algorithms=["Ed25519"])

    async def fetch(self, routes: TokenRoutes) -> Token:
        return await routes.exchange_assertion(self.assertion())


class ClientSecretCredentials:
    """A service account with a secret, for programs that cannot sign. Prefer the key."""

    renewable = True

    def __init__(self, service_account_id: str, secret: str) -> None:
        self.service_account_id = service_account_id
        self._secret = secret

    async def fetch(self, routes: TokenRoutes) -> Token:
        return await routes.exchange_secret(self.service_account_id, self._secret)


class RefreshTokenCredentials:
    """A login from the device flow. Every token that is fetched brings the next refresh token with it.

    `persist` gets that one before anything is done with the token, and must have kept it when it returns: the
    old one is worthless from then on, and to show it again ends the whole login. Two processes that share a
    login must take turns, from reading the kept token until the next one is kept."""

    renewable = True

    def __init__(self, refresh_token: str, persist: Callable[[str], Awaitable[None] | None]) -> None:
        self._refresh_token = refresh_token
        self._persist = persist

    async def fetch(self, routes: TokenRoutes) -> Token:
        token = await routes.exchange_refresh_token(self._refresh_token)
        if token.refresh_token is not None:
            self._refresh_token = token.refresh_token
            kept = self._persist(token.refresh_token)
            if kept is not None:
                await kept
        return token
