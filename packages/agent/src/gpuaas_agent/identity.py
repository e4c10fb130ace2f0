"""The identity of this node: a key that it made itself, and the id that the platform gave it for that key."""

import asyncio
import hashlib
import json
import logging
import secrets
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import httpx
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from joserfc import jwt
from joserfc.errors import SecurityWarning
from joserfc.jwk import OKPKey

from gpuaas_agent.errors import (
    PermanentError,
    PlatformRefusedError,
    PlatformUnavailableError,
    raise_for_problem,
    reason_of,
)
from gpuaas_agent.files import write_atomically
from gpuaas_agent.settings import Settings
from gpuaas_contract.agent_link import AGENT_AUDIENCE
from gpuaas_contract.backoff import Backoff
from gpuaas_contract.ids import CORRELATION, new_id
from gpuaas_contract.nodes import Enrolment, EnrolRequest
from gpuaas_contract.problems import CORRELATION_HEADER, IDEMPOTENCY_HEADER, Code
from gpuaas_contract.trust import TrustError, client_context

log = logging.getLogger(__name__)

KEY_FILE = "node.key"
NEXT_KEY_FILE = "node.key.next"
"""A new key that the platform may or may not have heard of yet."""
NODE_FILE = "node.json"
TOKEN_SECONDS = 60


@dataclass(frozen=True)
class Identity:
    node_id: str
    name: str
    key_pem: bytes

    def token(self) -> str:
        """A bearer token for the next connection or request; the key itself never leaves the host."""
        now = int(time.time())
        claims = {
            "iss": self.node_id,
            "sub": self.node_id,
            "aud": AGENT_AUDIENCE,
            "iat": now,
            "exp": now + TOKEN_SECONDS,
            "jti": secrets.token_urlsafe(16),
        }
        with warnings.catch_warnings():
            # RFC 9864 renames the algorithm to Ed25519; the platform's contract still says EdDSA.
            warnings.simplefilter("ignore", SecurityWarning)
            return jwt.encode({"alg": "EdDSA"}, claims, OKPKey.import_key(self.key_pem), algorithms=["EdDSA"])


def load_or_make_key(state_dir: Path, name: str = KEY_FILE) -> bytes:
    """Load the key, or make one that is on disk before anybody sees it: a crash cannot lose an enrolled key."""
    state_dir.mkdir(parents=True, exist_ok=True)
    path = state_dir / name
    if path.exists():
        return path.read_bytes()
    pem = Ed25519PrivateKey.generate().private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_atomically(path, pem, mode=0o600)
    return pem


def public_key_pem(key_pem: bytes) -> str:
    key = serialization.load_pem_private_key(key_pem, password=None)
    return (
        key.public_key()
        .public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        .decode()
    )


def load_identity(state_dir: Path) -> Identity | None:
    path = state_dir / NODE_FILE
    if not path.exists():
        return None
    stored = json.loads(path.read_text())
    return Identity(node_id=stored["node_id"], name=stored["name"], key_pem=(state_dir / KEY_FILE).read_bytes())


async def ensure_identity(settings: Settings) -> Identity:
    """Enrols once; afterwards reads what the enrolment gave. Waits for a platform that is not up yet."""
    if found := load_identity(settings.state_dir):
        return found
    token = _read_join_token(settings)
    key_pem = load_or_make_key(settings.state_dir)
    pauses = Backoff(first_delay=0.2, longest_delay=5).delays()
    while True:
        try:
            enrolment = await _enrol(settings, token, public_key_pem(key_pem))
            break
        except PlatformUnavailableError as error:
            pause = next(pauses)
            log.warning("cannot enrol yet: %s; next attempt in %.1f s", error, pause)
            await asyncio.sleep(pause)
        except PlatformRefusedError as error:
            raise _explain_refusal(error, settings) from error
    stored = {"node_id": enrolment.node_id, "name": enrolment.name, "api_url": settings.api_url}
    write_atomically(settings.state_dir / NODE_FILE, json.dumps(stored).encode(), mode=0o600)
    log.info("enrolled as %s (%s)", enrolment.name, enrolment.node_id)
    return Identity(node_id=enrolment.node_id, name=enrolment.name, key_pem=key_pem)


def _read_join_token(settings: Settings) -> str:
    path = settings.join_token_file
    if path is None:
        raise PermanentError("cannot enrol: this node has no identity yet and GPUAAS_JOIN_TOKEN_FILE is not set")
    try:
        token = path.read_text().strip()
    except OSError as error:
        raise PermanentError(f"cannot enrol: cannot read the join token: {error}") from error
    if not token:
        raise PermanentError(f"cannot enrol: the join token file {path} is empty")
    return token


async def _enrol(settings: Settings, token: str, public_key: str) -> Enrolment:
    api_url = settings.api_url
    body = EnrolRequest(join_token=token, public_key_pem=public_key)
    headers = {
        # The same key and token give the same idempotency key: an answer that got lost is given again.
        IDEMPOTENCY_HEADER: hashlib.sha256(f"{token}\n{public_key}".encode()).hexdigest(),
        CORRELATION_HEADER: new_id(CORRELATION),
    }
    try:
        trust = client_context(api_url, settings.ca_file)
        async with httpx.AsyncClient(base_url=api_url, timeout=15, verify=trust) as client:
            answer = await client.post("/v1/nodes/enrol", json=body.model_dump(mode="json"), headers=headers)
    except TrustError as error:
        raise PlatformUnavailableError(str(error)) from None
    except httpx.TransportError as error:
        raise PlatformUnavailableError(f"{api_url} does not answer: {reason_of(error)}") from error
    raise_for_problem(answer, answer.content)
    return Enrolment.model_validate_json(answer.content)


def _explain_refusal(error: PlatformRefusedError, settings: Settings) -> PermanentError:
    if error.code != Code.JOIN_TOKEN_INVALID:
        return PermanentError(f"cannot enrol: {error}")
    return PermanentError(
        f"cannot enrol: {error} A join token works once and expires. If an earlier run of this agent used it"
        f" and was stopped before it could store the answer, retire that node; in each case make a new join"
        f" token, put it into {settings.join_token_file} and start the agent again. The key in"
        f" {settings.state_dir / KEY_FILE} is kept."
    )
