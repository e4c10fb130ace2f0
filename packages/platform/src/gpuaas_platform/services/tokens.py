"""Bearer tokens: signed in OpenBao, verified locally; the principal behind them is read on every request."""

import base64
import json
import time
import warnings
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from joserfc import jwt
from joserfc.errors import JoseError, SecurityWarning
from joserfc.jwk import OKPKey

from gpuaas_contract import ids
from gpuaas_contract.agent_link import AGENT_AUDIENCE
from gpuaas_contract.identity import PrincipalKind, Role, Token
from gpuaas_contract.problems import Code
from gpuaas_platform.adapters.openbao import OpenBao
from gpuaas_platform.domain.errors import Refusal
from gpuaas_platform.domain.policy import CONTROLLER, Caller, RoleGrant
from gpuaas_platform.storage import identity as identity_store
from gpuaas_platform.storage import nodes as node_store
from gpuaas_platform.storage.database import Database, Transaction

ISSUER = "gpuaas"
AUDIENCE = "gpuaas"
TOKEN_SECONDS = 3600
ALGORITHMS = ["Ed25519", "EdDSA"]
"""Two names of one algorithm: RFC 9864 renamed it, and clients may use either."""
ASSERTION_SECONDS = 60


def _encode(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


def _unauthenticated(detail: str) -> Refusal:
    return Refusal(Code.UNAUTHENTICATED, detail)


@dataclass(frozen=True, slots=True)
class Authenticated:
    caller: Caller
    expires_at: datetime


class TokenService:
    def __init__(self, openbao: OpenBao, database: Database) -> None:
        self._openbao = openbao
        self._database = database
        self._keys: dict[str, OKPKey] = {}

    async def start(self) -> None:
        await self._openbao.ensure_token_key()
        await self._load_keys()

    async def _load_keys(self) -> None:
        keys = await self._openbao.token_public_keys()
        self._keys = {
            version: OKPKey.import_key({"kty": "OKP", "crv": "Ed25519", "x": _encode(raw)})
            for version, raw in keys.items()
        }

    async def issue(self, principal_id: str, epoch: int) -> Token:
        version = max(self._keys, key=int)
        now = int(time.time())
        header = {"alg": "Ed25519", "typ": "at+jwt", "kid": version}
        claims = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": principal_id,
            "epoch": epoch,
            "iat": now,
            "exp": now + TOKEN_SECONDS,
        }
        signing_input = ".".join(_encode(json.dumps(part).encode()) for part in (header, claims))
        signature = await self._openbao.sign_token(signing_input.encode(), version)
        return Token(access_token=f"{signing_input}.{_encode(signature)}", expires_in=TOKEN_SECONDS)

    async def authenticate(self, tx: Transaction, bearer: str) -> Authenticated:
        claims = await self._verify(bearer)
        principal_id = str(claims["sub"])
        if ids.is_id(principal_id, ids.USER):
            caller, epoch = await _load_user(tx, principal_id)
        elif ids.is_id(principal_id, ids.SERVICE_ACCOUNT):
            caller, epoch = await _load_service_account(tx, principal_id)
        else:
            raise _unauthenticated("the token names no known kind of principal")
        if epoch != claims.get("epoch"):
            raise _unauthenticated("the token was withdrawn; log in again")
        return Authenticated(caller, datetime.fromtimestamp(claims["exp"], UTC))

    async def _verify(self, bearer: str) -> dict[str, Any]:
        try:
            kid = json.loads(base64.urlsafe_b64decode(bearer.split(".")[0] + "=="))["kid"]
        except (ValueError, KeyError, TypeError, IndexError) as error:
            raise _unauthenticated("the bearer token cannot be read") from error
        if kid not in self._keys:
            # The key may have been rotated by another process.
            await self._load_keys()
        key = self._keys.get(kid)
        if key is None:
            raise _unauthenticated("the token was signed with an unknown key")
        return _verify_claims(bearer, key, issuer=ISSUER, audience=AUDIENCE)

    async def exchange_assertion(self, assertion: str) -> Token:
        """OAuth 2 client credentials with a private-key JWT (RFC 7523): each assertion works once."""
        async with self._database.system_transaction() as tx:
            account_id = _unverified_subject(assertion)
            account = await identity_store.get_service_account(tx, account_id)
            if account is None or account["disabled"]:
                raise Refusal(Code.INVALID_CREDENTIALS, "this service account cannot log in")
            await verify_assertion(tx, assertion, account["public_key_pem"], account_id, AUDIENCE)
        return await self.issue(account_id, account["epoch"])

    async def authenticate_agent(self, tx: Transaction, bearer: str) -> Caller:
        node_id = _unverified_subject(bearer)
        node = await node_store.get(tx, node_id)
        if node is None:
            raise _unauthenticated("no such node is enrolled")
        await verify_assertion(tx, bearer, node["public_key_pem"], node_id, AGENT_AUDIENCE)
        return Caller(kind=PrincipalKind.NODE, id=node["id"], name=node["name"])


def _unverified_subject(assertion: str) -> str:
    try:
        payload = assertion.split(".")[1]
        return str(json.loads(base64.urlsafe_b64decode(payload + "=="))["sub"])
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise _unauthenticated("the assertion cannot be read") from error


def _verify_claims(token: str, key: OKPKey, *, issuer: str, audience: str) -> dict[str, Any]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SecurityWarning)
            decoded = jwt.decode(token, key, algorithms=ALGORITHMS)
        jwt.JWTClaimsRegistry(
            leeway=5,
            iss={"essential": True, "value": issuer},
            aud={"essential": True, "value": audience},
            sub={"essential": True},
            exp={"essential": True},
            iat={"essential": True},
        ).validate(decoded.claims)
    except (JoseError, ValueError) as error:
        raise _unauthenticated(f"the token is not valid: {error}") from error
    return dict(decoded.claims)


async def verify_assertion(
    tx: Transaction, assertion: str, public_key_pem: str, principal_id: str, audience: str
) -> None:
    claims = _verify_claims(assertion, OKPKey.import_key(public_key_pem), issuer=principal_id, audience=audience)
    if claims["exp"] - claims["iat"] > ASSERTION_SECONDS or "jti" not in claims:
        raise _unauthenticated(f"an assertion needs a jti and lives for at most {ASSERTION_SECONDS} seconds")
    assertion_id = f"{principal_id}/{str(claims['jti'])[:200]}"
    if not await identity_store.use_assertion(tx, assertion_id, datetime.fromtimestamp(claims["exp"], UTC)):
        raise _unauthenticated("this assertion was used before; sign a new one")


async def _load_user(tx: Transaction, user_id: str) -> tuple[Caller, int]:
    user = await identity_store.get_user(tx, user_id)
    if user is None or user["disabled"]:
        raise _unauthenticated("the user does not exist or is disabled")
    memberships = await identity_store.memberships_of(tx, user_id)
    grants = tuple(RoleGrant(m["role"], m["tenant_id"], m["project_id"]) for m in memberships)
    tenants = frozenset(m["seen_tenant_id"] for m in memberships if m["seen_tenant_id"])
    return Caller(PrincipalKind.USER, user_id, user["email"], grants, tenant_ids=tenants), user["epoch"]


async def _load_service_account(tx: Transaction, account_id: str) -> tuple[Caller, int]:
    account = await identity_store.get_service_account(tx, account_id)
    if account is None or account["disabled"]:
        raise _unauthenticated("the service account does not exist or is disabled")
    role = CONTROLLER if account["app_slug"] else Role.PROJECT_VIEWER
    caller = Caller(
        PrincipalKind.SERVICE_ACCOUNT,
        account_id,
        account["name"],
        (RoleGrant(role, project_id=account["project_id"]),),
        app_slug=account["app_slug"],
        tenant_ids=frozenset({account["tenant_id"]}),
    )
    return caller, account["epoch"]
