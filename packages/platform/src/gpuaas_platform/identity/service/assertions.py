"""JWTs: what is accepted of those that we sign, and of those that clients sign to say who they are."""

import base64
import json
import math
import warnings
from collections.abc import Collection, Iterable
from datetime import UTC, datetime
from typing import Any

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_pem_public_key
from joserfc import jwt
from joserfc.errors import JoseError, SecurityWarning
from joserfc.jwk import OKPKey

from gpuaas_contract.problems import Code, FieldError
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.identity.storage import oauth as store

ALGORITHMS = ["Ed25519", "EdDSA"]
"""Two names of one algorithm: RFC 9864 renamed it, and clients may use either."""
ASSERTION_SECONDS = 60
ACCESS_TOKEN_TYPE = "at+jwt"  # noqa: S105 - a media type
_ASSERTION_TYPES = {"jwt", "client-authentication+jwt"}
_LEEWAY = 5


def unauthenticated(detail: str) -> Refusal:
    return Refusal(Code.UNAUTHENTICATED, detail)


def read_part(token: str, number: int) -> dict[str, Any]:
    """The header (0) or the claims (1), before anything about them is known to be true."""
    try:
        part = token.split(".")[number]
        content = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    except (ValueError, IndexError, RecursionError) as error:
        raise unauthenticated("the token cannot be read") from error
    if not isinstance(content, dict):
        raise unauthenticated("the token cannot be read")
    return content


def verify(token: str, key: OKPKey, *, issuer: str, audiences: Collection[str]) -> dict[str, Any]:
    """The claims, once the signature, the algorithm, the times, the issuer and the audience are right."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SecurityWarning)
            decoded = jwt.decode(token, key, algorithms=ALGORITHMS)
        jwt.JWTClaimsRegistry(
            leeway=_LEEWAY,
            iss={"essential": True, "value": issuer},
            aud={"essential": True, "values": list(audiences)},
            sub={"essential": True},
            exp={"essential": True},
            iat={"essential": True},
        ).validate(decoded.claims)
    except (JoseError, ValueError, TypeError) as error:
        raise unauthenticated(f"the token is not valid: {error}") from error
    if not (math.isfinite(decoded.claims["exp"]) and math.isfinite(decoded.claims["iat"])):
        raise unauthenticated("the token is not valid: its times are not numbers")
    return dict(decoded.claims)


def is_access_token(header: dict[str, Any]) -> bool:
    return str(header.get("typ", "")).lower().removeprefix("application/") == ACCESS_TOKEN_TYPE


async def verify_assertion(
    tx: Transaction, assertion: str, public_keys: Iterable[str], principal_id: str, audiences: Collection[str]
) -> int:
    """Which of the keys signed it. Each assertion works once, and not for long."""
    kind = str(read_part(assertion, 0).get("typ", "JWT")).lower()
    if kind not in _ASSERTION_TYPES:
        raise unauthenticated("this is a token of another kind, not an assertion")
    number, claims = _verify_with_any(assertion, public_keys, principal_id, audiences)
    if claims["exp"] - claims["iat"] > ASSERTION_SECONDS or not isinstance(claims.get("jti"), str):
        raise unauthenticated(f"an assertion needs a jti and lives for at most {ASSERTION_SECONDS} seconds")
    assertion_id = f"{principal_id}/{claims['jti'][:200]}"
    if not await store.use_assertion(tx, assertion_id, datetime.fromtimestamp(claims["exp"], UTC)):
        raise unauthenticated("this assertion was used before; sign a new one")
    return number


def _verify_with_any(
    assertion: str, public_keys: Iterable[str], principal_id: str, audiences: Collection[str]
) -> tuple[int, dict[str, Any]]:
    refusal = unauthenticated("there is no key that could have signed this assertion")
    for number, pem in enumerate(public_keys):
        try:
            return number, verify(assertion, OKPKey.import_key(pem), issuer=principal_id, audiences=audiences)
        except Refusal as error:
            refusal = error
    raise refusal


def check_public_key(pem: str) -> None:
    try:
        key = load_pem_public_key(pem.encode())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        detail = "public_key_pem must be an ed25519 public key in PEM form"
        raise Refusal(Code.INVALID_REQUEST, detail, errors=[FieldError(pointer="/public_key_pem", detail=detail)])
