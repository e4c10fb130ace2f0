"""Access credentials: their lives, and the one way to their keys."""

import asyncio
import secrets
from collections.abc import Iterator

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import dsa, ec, ed25519, rsa
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_ssh_private_key,
)

from gpuaas_contract.credentials import CredentialStatus, KeyOrigin, VersionState
from gpuaas_contract.identity import Role
from gpuaas_contract.problems import Code
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials, ServiceAccountCredentials
from gpuaas_sdk.errors import (
    AlreadyDeliveredError,
    ApiError,
    ForbiddenError,
    InvalidRequestError,
    InvalidStateError,
    NameTakenError,
    NotEmptyError,
    NotFoundError,
    StaleLeaseError,
)
from gpuaas_sdk.secret_value import SecretValue
from gpuaas_stack.settings import Settings
from tests.support.database import audited, connect
from tests.support.identity import PASSWORD, unique
from tests.support.leases import hold_lease
from tests.support.openbao import Vault
from tests.support.world import World, make_key


@pytest.fixture
def vault(settings: Settings) -> Iterator[Vault]:
    with Vault(settings) as vault:
        yield vault


def openssh(key: object, password: str | None = None) -> str:
    encryption = NoEncryption() if password is None else BestAvailableEncryption(password.encode())
    return key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, encryption).decode()  # type: ignore[attr-defined]


def public_of(value: SecretValue) -> str:
    key = load_ssh_private_key(value.reveal(), password=None)
    return key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()


async def test_a_generated_key_reaches_the_lease_holder(world: World) -> None:
    made = await world.admin.credentials.create(world.project.id, "outside")
    (version,) = made.versions
    assert (version.version, version.state, version.origin) == (1, VersionState.VALID, KeyOrigin.GENERATED)
    assert version.public_key.startswith("ssh-ed25519 ")
    assert version.fingerprint.startswith("SHA256:")
    lease = await hold_lease(world)
    value = await lease.credential(made.id)
    assert public_of(value) == version.public_key
    assert (value.owner_id, value.version) == (made.id, 1)
    assert await world.admin.credentials.get(made.id) == made
    assert await world.admin.credentials.list(project_id=world.project.id).all() == [made]


@pytest.mark.parametrize(
    ("make", "key_type", "bits"),
    [
        (ed25519.Ed25519PrivateKey.generate, "ssh-ed25519", 256),
        (lambda: ec.generate_private_key(ec.SECP384R1()), "ecdsa-sha2-nistp384", 384),
        (lambda: rsa.generate_private_key(65537, 3072), "ssh-rsa", 3072),
    ],
)
async def test_an_uploaded_key_comes_back_as_it_was(world: World, make, key_type: str, bits: int) -> None:  # type: ignore[no-untyped-def]
    key = make()
    made = await world.admin.credentials.create(world.project.id, "own", private_key=openssh(key))
    (version,) = made.versions
    assert (version.key_type, version.bits, version.origin) == (key_type, bits, KeyOrigin.UPLOADED)
    value = await (await hold_lease(world)).credential(made.id)
    assert public_of(value) == key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
