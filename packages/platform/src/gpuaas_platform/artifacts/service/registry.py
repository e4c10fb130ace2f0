"""Tokens for the registry: the platform says who may pull and push what, and the registry believes its signature."""

import json
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_pem_public_key
from cryptography.x509.oid import NameOID
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import ECKey

from gpuaas_contract import ids, oci
from gpuaas_contract.artifacts import RegistryToken
from gpuaas_contract.operations import TEARDOWN_KINDS
from gpuaas_contract.wire import API_PREFIX
from gpuaas_platform.artifacts.adapters.registry import Registry
from gpuaas_platform.artifacts.adapters.space import Space
from gpuaas_platform.artifacts.adapters.uploads import Uploads
from gpuaas_platform.artifacts.rules.registry_access import PULL, PUSH, Access, key_id
from gpuaas_platform.artifacts.rules.room import Registered, Room, RoomLimits, find_refusal
from gpuaas_platform.artifacts.storage import artifacts as store
from gpuaas_platform.catalogue.storage import entitlements as entitlement_store
from gpuaas_platform.catalogue.storage import versions as version_store
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.core.openbao import OpenBao
from gpuaas_platform.identity.rules.policy import Caller, Permission
from gpuaas_platform.identity.service.apps import tenants_of
from gpuaas_platform.identity.service.assertions import read_part
from gpuaas_platform.identity.service.owners import require_owner_of_artifacts
from gpuaas_platform.identity.service.signing_keys import encode
from gpuaas_platform.identity.service.tokens import TokenService
from gpuaas_platform.operations.storage import operations as operation_store

ISSUER = "gpuaas"
PLATFORM = "platform"
"""The subject of tokens that the platform uses itself."""
TOKEN_SECONDS = 60
"""Docker's registry grants a minute more. Clients ask for another one when this one is refused."""
_PERMISSION = {PULL: Permission.ARTIFACT_READ, PUSH: Permission.ARTIFACT_MANAGE}


@dataclass(frozen=True, slots=True)
class Login:
    """The log-in that a token for the registry was asked for with, and ends with."""

    epoch: object
    session_id: str | None


class RegistryService:
    def __init__(
        self,
        openbao: OpenBao,
        registry: Registry,
        uploads: Uploads,
        space: Space,
        limits: RoomLimits,
        check_url: str | None,
    ) -> None:
        self._openbao = openbao
        self.registry = registry
        self.uploads = uploads
        self.limits = limits
        self._space = space
        self._check_url = check_url
        self._version = ""
        self._key_id = ""
        self._keys: dict[str, ECKey] = {}

    async def start(self) -> None:
        await self._openbao.ensure_registry_key()
        keys = await self._openbao.registry_keys()
        self._version = max(keys, key=int)
        self._key_id = key_id(_der(keys[self._version]))
        self._keys = {key_id(_der(pem)): ECKey.import_key(pem) for pem in keys.values()}

    async def token(self, subject: str, *access: Access, login: Login | None = None) -> RegistryToken:
        """Never inside of a transaction: OpenBao signs. Anybody's but our own names where to ask whether it is still
        good, and the log-in behind it."""
        now = int(time.time())
        header = {"typ": "JWT", "alg": "ES256", "kid": self._key_id}
        claims = {
            "iss": ISSUER,
            "sub": subject,
            "aud": oci.SERVICE,
            "exp": now + TOKEN_SECONDS,
            # Clocks differ a little, and the registry is strict.
            "nbf": now - 10,
            "iat": now,
            "jti": secrets.token_hex(8),
            "access": [one.as_claim() for one in access],
        }
        if self._check_url is not None and subject != PLATFORM:
            claims["check"] = f"{self._check_url.rstrip('/')}{API_PREFIX}/registry/check"
        if login is not None:
            claims |= {"epoch": login.epoch, "sid": login.session_id}
        signing_input = ".".join(encode(json.dumps(part).encode()) for part in (header, claims))
        signature = await self._openbao.sign_registry_token(signing_input.encode(), self._version)
        token = f"{signing_input}.{signature}"
        issued = datetime.fromtimestamp(now, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        return RegistryToken(token=token, access_token=token, expires_in=TOKEN_SECONDS, issued_at=issued)

    async def registered(self, tx: Transaction, repository: str) -> Registered:
        app_slug, project_id = oci.owner_of(repository) or (None, None)
        used, total = await store.sum_sizes(tx, app_slug, project_id)
        return Registered(f"app {app_slug}" if app_slug else f"project {project_id}", used, total)

    async def room_of(self, repository: str, registered: Registered, pushed: int = 0) -> Room:
        """Measure what the owner of a repository has: on the disk where it can be seen, else what is registered and
        what was just pushed. Never inside of a transaction: there may be many files."""
        used, total = registered.used + pushed, registered.total + pushed
        if self._space.is_known:
            used = await self._space.used_by(repository.rpartition("/")[0])
            total = await self._space.total()
        return Room(registered.owner, used, total, await self._space.free())

    async def push_refusal(self, asked: Mapping[str, Registered]) -> Refusal | None:
        """Why nothing may be pushed to these repositories just now."""
        for repository, registered in asked.items():
            refusal = find_refusal(await self.room_of(repository, registered), self.limits)
            if refusal is not None:
                return refusal
        return None

    async def own_token(self, repository: str, *actions: str) -> str:
        return (await self.token(PLATFORM, Access(repository, actions))).token

    def read_token(self, token: str) -> dict[str, Any] | None:
        """The claims of a token that we signed, whether or not it has expired: the registry looks at that."""
        try:
            key = self._keys.get(str(read_part(token, 0).get("kid")))
            return None if key is None else dict(jwt.decode(token, key, algorithms=["ES256"]).claims)
        except (Refusal, JoseError, ValueError, TypeError):
            return None


async def is_still_allowed(tx: Transaction, tokens: TokenService, claims: Mapping[str, Any]) -> bool:
    """Whether all that a token says may be done is still the right of its holder: the entitlement, the role, the
    account, the log-in, or the delivery for which an agent has it."""
    subject = str(claims["sub"])
    granted = [Access(str(one["name"]), tuple(one["actions"])) for one in claims["access"]]
    if ids.is_id(subject, ids.NODE):
        return all([await version_store.has_open_delivery(tx, subject, one.repository) for one in granted])
    try:
        found = await tokens.find_principal(tx, subject, claims.get("epoch"), claims.get("sid"), claims["exp"])
    except Refusal:
        return False
    return await allowed(tx, found.caller, granted) == granted


async def allowed(tx: Transaction, caller: Caller, asked: list[Access]) -> list[Access]:
    """Of what was asked for, what the caller may do: the protocol leaves out the rest without a word."""
    granted = []
    for access in asked:
        actions = tuple([a for a in access.actions if await _may(tx, caller, access.repository, _PERMISSION[a])])
        if actions:
            granted.append(Access(access.repository, actions))
    return granted


async def _may(tx: Transaction, caller: Caller, repository: str, permission: Permission) -> bool:
    owner = oci.owner_of(repository)
    if owner is None:
        return False
    # An app's own controller copies what is its app's to machines that have no agent.
    if permission == Permission.ARTIFACT_READ and caller.app_slug is not None and owner == (caller.app_slug, None):
        entitled = await entitlement_store.any_of(tx, tenants_of(caller), caller.app_slug)
        if entitled or await operation_store.holds_lease(tx, caller.id, caller.app_slug, TEARDOWN_KINDS):
            return True
    try:
        await require_owner_of_artifacts(tx, caller, *owner, permission)
    except Refusal:
        return False
    return True


def _der(public_key_pem: str) -> bytes:
    return load_pem_public_key(public_key_pem.encode()).public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)


async def certificate_bundle(openbao: OpenBao) -> str:
    """The certificate by which a registry verifies tokens: it takes public keys in certificates only.

    Their own signatures count for nothing, so that a key made for the moment gives them."""
    await openbao.ensure_registry_key()
    certificates = []
    for version, pem in sorted((await openbao.registry_keys()).items()):
        public_key = load_pem_public_key(pem.encode())
        assert isinstance(public_key, ec.EllipticCurvePublicKey)
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"gpuaas registry tokens {version}")])
        builder = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(public_key)
        start = datetime.now(UTC) - timedelta(days=1)
        builder = builder.serial_number(x509.random_serial_number()).not_valid_before(start)
        builder = builder.not_valid_after(start + timedelta(days=36_500))
        certificate = builder.sign(ec.generate_private_key(ec.SECP256R1()), hashes.SHA256())
        certificates.append(certificate.public_bytes(Encoding.PEM).decode())
    return "".join(certificates)
