"""Bearer tokens: signed in OpenBao, verified locally; the principal behind them is read on every request."""

import hashlib
import json
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from joserfc.jwk import OKPKey

from gpuaas_contract import ids
from gpuaas_contract.agent_link import AGENT_AUDIENCE
from gpuaas_contract.events import NodeEvent
from gpuaas_contract.identity import PrincipalKind, Token
from gpuaas_platform.core.database import Database, Transaction
from gpuaas_platform.identity.rules.policy import Caller
from gpuaas_platform.identity.rules.signing_keys import TOKEN_SECONDS
from gpuaas_platform.identity.service.assertions import (
    ACCESS_TOKEN_TYPE,
    is_access_token,
    read_part,
    unauthenticated,
    verify,
    verify_assertion,
)
from gpuaas_platform.identity.service.principals import Authenticated, caller_of_service_account, caller_of_user
from gpuaas_platform.identity.service.signing_keys import SigningKeys, encode
from gpuaas_platform.identity.storage import principals as store
from gpuaas_platform.nodes import storage as node_store

ISSUER = "gpuaas"
AUDIENCE = "gpuaas"


MOST_VERIFIED = 10_000


@dataclass(frozen=True, slots=True)
class _Verified:
    kid: str
    key: OKPKey
    claims: dict[str, Any]
    expires_at: float


class TokenService:
    def __init__(self, keys: SigningKeys, database: Database) -> None:
        self.keys = keys
        self._database = database
        self._verified: dict[bytes, _Verified] = {}
        """By digest, so that no token lies about in memory."""

    async def issue(self, principal_id: str, epoch: int, session_id: str | None = None) -> Token:
        """Never inside of a transaction: OpenBao signs."""
        version = self.keys.signing_version()
        now = int(time.time())
        header = {"alg": "Ed25519", "typ": ACCESS_TOKEN_TYPE, "kid": version}
        claims = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": principal_id,
            "epoch": epoch,
            "iat": now,
            "exp": now + TOKEN_SECONDS,
        }
        if session_id is not None:
            claims["sid"] = session_id
        signing_input = ".".join(encode(json.dumps(part).encode()) for part in (header, claims))
        signature = await self.keys.sign(signing_input.encode(), version)
        return Token(access_token=f"{signing_input}.{encode(signature)}", expires_in=TOKEN_SECONDS)

    async def verify(self, bearer: str) -> dict[str, Any]:
        """A signature is checked once: it stays right for as long as its key and its times are."""
        digest = hashlib.sha256(bearer.encode()).digest()
        known = self._verified.get(digest)
        if known is not None and known.expires_at > time.time() and await self.keys.find(known.kid) is known.key:
            return known.claims
        verified = await self._verify(bearer)
        if len(self._verified) >= MOST_VERIFIED:
            self._verified.clear()
        self._verified[digest] = verified
        return verified.claims

    async def _verify(self, bearer: str) -> _Verified:
        header = read_part(bearer, 0)
        kid = header.get("kid")
        if not isinstance(kid, str) or not is_access_token(header):
            raise unauthenticated("this is not an access token of this platform")
        key = await self.keys.find(kid)
        if key is None:
            raise unauthenticated("the token was signed with an unknown key")
        claims = verify(bearer, key, issuer=ISSUER, audiences=[AUDIENCE])
        return _Verified(kid, key, claims, claims["exp"])

    async def authenticate(self, bearer: str, correlation_id: str) -> Authenticated:
        claims = await self.verify(bearer)
        async with self._database.reading(claims["sub"], correlation_id) as tx:
            return await self.find_principal(tx, claims["sub"], claims.get("epoch"), claims.get("sid"), claims["exp"])

    @staticmethod
    async def find_principal(
        tx: Transaction, principal_id: str, epoch: object, session_id: object, expires: float
    ) -> Authenticated:
        """The principal as it is now, where the log-in that a token names was not ended meanwhile."""
        expires_at = datetime.fromtimestamp(expires, UTC)
        if ids.is_id(principal_id, ids.USER):
            return await _user_of_token(tx, principal_id, str(session_id), epoch, expires_at)
        if ids.is_id(principal_id, ids.SERVICE_ACCOUNT):
            return await _service_account_of_token(tx, principal_id, epoch, expires_at)
        raise unauthenticated("the token names no known kind of principal")

    async def authenticate_agent(self, tx: Transaction, bearer: str) -> Caller:
        node_id = str(read_part(bearer, 1).get("sub"))
        node = await node_store.get_identity(tx, node_id)
        if node is None:
            raise unauthenticated("no such node is enrolled")
        if node.revoked_at is not None:
            raise unauthenticated("the identity of this node was revoked")
        keys = [node.public_key_pem] + ([node.next_public_key_pem] if node.next_public_key_pem else [])
        used = await verify_assertion(tx, bearer, keys, node_id, [AGENT_AUDIENCE])
        if used == 1 and (changed := await node_store.take_offered_key(tx, node_id)):
            await tx.changed(NodeEvent.IDENTITY_ROTATED, changed)
            await tx.audit("node.identity_rotated", node_id)
        return Caller(kind=PrincipalKind.NODE, id=node.id, name=node.name)


async def _user_of_token(
    tx: Transaction, user_id: str, session_id: str, epoch: object, expires_at: datetime
) -> Authenticated:
    row = await store.get_user(tx, user_id, session_id)
    if row is None or row.disabled:
        raise unauthenticated("the user does not exist or is disabled")
    if row.epoch != epoch or not row.live:
        raise unauthenticated("this login was ended; log in again")
    return Authenticated(
        caller_of_user(row),
        expires_at,
        session_id=row.session_id,
        password_change_required=row.password_change_required,
    )


async def _service_account_of_token(
    tx: Transaction, account_id: str, epoch: object, expires_at: datetime
) -> Authenticated:
    row = await store.get_service_account(tx, account_id)
    if row is None or row.disabled:
        raise unauthenticated("the service account does not exist or is disabled")
    if row.epoch != epoch:
        raise unauthenticated("the token was withdrawn; fetch a new one")
    return Authenticated(caller_of_service_account(row), expires_at)
