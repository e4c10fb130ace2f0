"""Who the client is: a person's password, a service account's key, or a token that somebody else fetched."""

import json
import secrets
import time
from pathlib import Path
from typing import Protocol

from gpuaas_contract.identity import LoginRequest, Token

ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
TOKEN_AUDIENCE = "gpuaas"  # noqa: S105 - the name of the audience
ASSERTION_SECONDS = 50
"""Less than the 60 seconds that the platform accepts, which leaves room for clocks that differ a little."""


class TokenRoutes(Protocol):
    """The two anonymous routes that turn credentials into a token."""

    async def login(self, request: LoginRequest) -> Token: ...

    async def exchange_assertion(self, assertion: str) -> Token: ...


class Credentials(Protocol):
    renewable: bool
    """Whether another call of `fetch` can give a better token."""

    async def fetch(self, routes: TokenRoutes) -> Token: ...


class StaticToken:
    """A token from elsewhere. It cannot be renewed: the caller gets to see its refusal."""

    renewable = False

    def __init__(self, token: str) -> None:
        self._token = token

    async def fetch(self, routes: TokenRoutes) -> Token:
        return Token(access_token=self._token, expires_in=365 * 86_400)


class PasswordCredentials:
    renewable = True

    def __init__(self, email: str, password: str) -> None:
        self.email = email
        self._password = password

    async def fetch(self, routes: TokenRoutes) -> Token:
        return await routes.login(LoginRequest.model_validate({"email": self.email, "password": self._password}))


class ServiceAccountCredentials:
    """OAuth 2 client credentials with a signed assertion: the private key never leaves this process."""

    renewable = True

    def __init__(self, service_account_id: str, private_key_pem: str, *, api_url: str | None = None) -> None:
        self.service_account_id = service_account_id
        self.api_url = api_url
        self._private_key_pem = private_key_pem

    @classmethod
    def from_file(cls, path: str | Path) -> "ServiceAccountCredentials":
        """Read the file that `gpuaas service-account create` wrote."""
        try:
            content = json.loads(Path(path).read_text())
            return cls(content["service_account_id"], content["private_key_pem"], api_url=content.get("api_url"))
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
