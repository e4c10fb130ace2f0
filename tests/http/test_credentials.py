"""Access credentials: their lives, and the one way to their keys."""

import asyncio
import base64
import secrets

import httpx
import pytest
from cryptography.hazmat.primitives.asymmetric import ed25519, rsa
from pydantic import ValidationError

from gpuaas_contract.credentials import CredentialStatus, KeyOrigin, VersionState
from gpuaas_contract.problems import Code
from gpuaas_sdk.errors import (
    ApiError,
    InvalidRequestError,
    InvalidStateError,
    NameTakenError,
    NotEmptyError,
    NotFoundError,
)
from gpuaas_sdk.secret_value import SecretValue
from gpuaas_stack.settings import Settings
from tests.support.database import connect
from tests.support.leases import hold_lease
from tests.support.openbao import Vault
from tests.support.ssh_keys import keygen, of_unknown_kind, openssh, public_of
from tests.support.world import World, make_key


async def test_a_generated_key_reaches_the_lease_holder(world: World) -> None:
    made = await world.admin.credentials.create(world.project.id, "outside")
    (version,) = made.versions
    assert (version.version, version.state, version.origin) == (1, VersionState.VALID, KeyOrigin.GENERATED)
    assert version.public_key.startswith("ssh-ed25519 ")
    assert version.fingerprint.startswith("SHA256:")
    lease = await hold_lease(world, access=made)
    value = await lease.credential(made.id)
    assert public_of(value) == version.public_key
    assert (value.owner_id, value.version) == (made.id, 1)
    assert await world.admin.credentials.get(made.id) == made
    assert await world.admin.credentials.list(project_id=world.project.id).all() == [made]


@pytest.mark.parametrize(
    ("key_type", "bits", "words"),
    [
        ("ssh-ed25519", 256, ["ed25519"]),
        ("ecdsa-sha2-nistp384", 384, ["ecdsa", "-b", "384"]),
        ("ssh-rsa", 3072, ["rsa", "-b", "3072"]),
    ],
)
async def test_an_uploaded_key_comes_back_as_it_was(world: World, key_type: str, bits: int, words: list[str]) -> None:
    key = keygen(*words)
    made = await world.admin.credentials.create(world.project.id, "own", private_key=key)
    (version,) = made.versions
    assert (version.key_type, version.bits, version.origin) == (key_type, bits, KeyOrigin.UPLOADED)
    value = await (await hold_lease(world, access=made)).credential(made.id)
    assert public_of(value) == public_of(SecretValue("its own", 0, key.encode())) == version.public_key
    assert b"ada@home" not in base64.b64decode("".join(value.reveal_text().splitlines()[1:-1]))


async def test_rotation_keeps_two_versions_and_no_third(world: World, vault: Vault) -> None:
    credentials = world.admin.credentials
    made = await credentials.create(world.project.id, "turning")
    rotated = await credentials.rotate(made.id)
    assert [(v.version, v.state) for v in rotated.versions] == [(1, VersionState.VALID), (2, VersionState.VALID)]
    lease = await hold_lease(world, access=made)
    assert public_of(await lease.credential(made.id)) == rotated.versions[1].public_key
    assert public_of(await lease.credential(made.id, 1)) == made.versions[0].public_key
    with pytest.raises(InvalidStateError) as refused:
        await credentials.rotate(made.id)
    assert refused.value.code == Code.KEY_LIMIT
    assert [action.href for action in refused.value.allowed_actions] == [
        f"/v1/credentials/{made.id}/versions/{version}" for version in (1, 2)
    ]
    ended = await credentials.end_version(made.id, 1)
    assert ended.versions[0].state != VersionState.VALID
    lease = await lease.claim_again()
    with pytest.raises(InvalidStateError, match="no valid version 1"):
        await lease.credential(made.id, 1)
    with pytest.raises(NotFoundError):
        await credentials.end_version(made.id, 1)
    with pytest.raises(InvalidStateError, match="only valid one"):
        await credentials.end_version(made.id, 2)

    async def destroyed() -> bool:
        return (await credentials.get(made.id)).versions[0].state == VersionState.ENDED

    await world.until(destroyed, "the old version is destroyed")
    assert not vault.knows(made.id, 1)
    assert vault.value(made.id, 2) is not None
    assert (await credentials.rotate(made.id)).versions[-1].version == 3


async def test_the_same_key_does_not_come_back(world: World) -> None:
    key = openssh(ed25519.Ed25519PrivateKey.generate())
    made = await world.admin.credentials.create(world.project.id, "same", private_key=key)
    with pytest.raises(InvalidStateError, match="this very key"):
        await world.admin.credentials.rotate(made.id, private_key=key)


async def test_two_who_rotate_at_once_do_not_make_three(world: World) -> None:
    made = await world.admin.credentials.create(world.project.id, "race")
    answers = await asyncio.gather(*(world.admin.credentials.rotate(made.id) for _ in range(4)), return_exceptions=True)
    assert len([answer for answer in answers if not isinstance(answer, BaseException)]) == 1
    after = await world.admin.credentials.get(made.id)
    assert [version.state for version in after.versions] == [VersionState.VALID] * 2


async def test_revoking_refuses_every_delivery_at_once(world: World, vault: Vault) -> None:
    made = await world.admin.credentials.create(world.project.id, "lost")
    lease = await hold_lease(world, access=made)
    wrapped = await world.controller.credentials.deliver(made.id, *lease.both)
    revoked = await world.admin.credentials.revoke(made.id)
    assert revoked.status == CredentialStatus.REVOKED
    with pytest.raises(InvalidStateError, match="has ended"):
        await lease.unwrap(wrapped)
    for refused in (
        lease.credential(made.id),
        world.admin.credentials.rotate(made.id),
        world.admin.credentials.revoke(made.id),
    ):
        with pytest.raises(InvalidStateError, match="revoked"):
            await refused

    async def destroyed() -> bool:
        return (await world.admin.credentials.get(made.id)).versions[0].state == VersionState.ENDED

    await world.until(destroyed, "the key is destroyed")
    assert not vault.knows(made.id)


async def test_deletion_frees_the_name_and_works_without_the_key(world: World, vault: Vault) -> None:
    made = await world.admin.credentials.create(world.project.id, "broken")
    with pytest.raises(NameTakenError):
        await world.admin.credentials.create(world.project.id, "broken")
    with pytest.raises(NotEmptyError):
        await world.admin.projects.delete(world.project.id)
    vault.destroy(made.id)
    lease = await hold_lease(world, access=made)
    with pytest.raises(InvalidStateError, match="has lost version 1"):
        await lease.credential(made.id)
    await world.admin.credentials.delete(made.id, revision=made.revision)
    with pytest.raises(NotFoundError):
        await world.admin.credentials.get(made.id)
    again = await world.admin.credentials.create(world.project.id, "broken")
    assert again.id != made.id


BAD_KEYS = {
    "empty": ("", "OpenSSH form"),
    "garbage": ("not a key", "OpenSSH form"),
    "damaged": (openssh(ed25519.Ed25519PrivateKey.generate()).replace("\n", "", 2)[:150], "damaged"),
    "encrypted": (keygen("ed25519", passphrase="a passphrase"), "encrypted"),
    "short rsa": (openssh(rsa.generate_private_key(65537, 2048)), "2048"),
    "unknown kind": (of_unknown_kind(openssh(ed25519.Ed25519PrivateKey.generate())), "of this kind"),
    "pem": (make_key()[0], "OpenSSH form"),
    "public": ("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl", "OpenSSH form"),
    "unsendable": ("-----BEGIN OPENSSH PRIVATE KEY-----\u0000é", "damaged"),
}


async def test_bad_keys_are_refused(world: World, vault: Vault) -> None:
    made = await world.admin.credentials.create(world.project.id, "good")
    before = set(vault.owners())
    for kind, (key, why) in BAD_KEYS.items():
        for refused in (
            world.admin.credentials.create(world.project.id, "bad", private_key=key),
            world.admin.credentials.rotate(made.id, private_key=key),
        ):
            with pytest.raises(InvalidRequestError, match=why) as caught:
                await refused
            assert caught.value.code == Code.KEY_INVALID, kind
            assert [error.pointer for error in caught.value.errors] == ["/private_key"]
    too_long = "-----BEGIN OPENSSH PRIVATE KEY-----" + 20_000 * "A"
    with pytest.raises(ValidationError):
        await world.admin.credentials.create(world.project.id, "bad", private_key=too_long)
    assert set(vault.owners()) - before == set()
    assert [c.name for c in await world.admin.credentials.list(project_id=world.project.id).all()] == ["good"]


async def test_a_repeated_request_makes_one_credential_and_shows_no_token(world: World, settings: Settings) -> None:
    key = secrets.token_hex(8)
    first = await world.admin.credentials.create(world.project.id, "repeated", idempotency_key=key)
    assert await world.admin.credentials.create(world.project.id, "repeated", idempotency_key=key) == first
    with pytest.raises(ApiError) as refused:
        await world.admin.credentials.create(world.project.id, "other", idempotency_key=key)
    assert refused.value.code == Code.IDEMPOTENCY_CONFLICT
    lease = await hold_lease(world, access=first)
    delivery = await world.controller.credentials.deliver(first.id, *lease.both, idempotency_key=key)
    again = await world.controller.credentials.deliver(first.id, *lease.both, idempotency_key=key)
    assert (again.id, again.wrapping_token) == (delivery.id, None)
    assert delivery.wrapping_token is not None
    # An unwrap has no memory: the same key does not bring the value back.
    token = (await world.controller.fetch_token()).access_token
    headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": key + "-unwrap"}
    async with httpx.AsyncClient(base_url=settings.api_url, headers=headers) as http:
        path, body = f"/v1/secret-deliveries/{delivery.id}/unwrap", {"wrapping_token": delivery.wrapping_token}
        answer = await http.post(path, json=body)
        assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
        replayed = await http.post(path, json=body)
    assert (replayed.status_code, replayed.json()["code"]) == (409, "delivery_used")
    assert "OPENSSH" not in replayed.text


async def test_a_duplicate_of_a_request_under_way_waits_for_it(world: World, settings: Settings) -> None:
    """The intent of one that was killed in the middle, as it lies in the database."""
    key = secrets.token_hex(8)
    principal = (await world.admin.principal()).id
    with connect(settings) as connection:
        connection.execute(
            """INSERT INTO secret_versions (owner_id, version, project_id, request_key, fingerprint)
               VALUES (%s, 1, %s, %s, 'SHA256:none')""",
            (f"crd_{key}", world.project.id, f"{principal}/{key}"),
        )
        token = (await world.admin.fetch_token()).access_token
        headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": key}
        body = {"project_id": world.project.id, "name": "killed"}
        async with httpx.AsyncClient(base_url=settings.api_url, headers=headers) as http:
            answer = await http.post("/v1/credentials", json=body)
            assert (answer.status_code, answer.json()["code"]) == (409, "idempotency_in_flight")
            assert answer.headers["retry-after"]
            connection.execute(
                "UPDATE secret_versions SET created_at = now() - interval '2 minutes' WHERE owner_id = %s",
                (f"crd_{key}",),
            )

            async def swept() -> bool:
                query = "SELECT state FROM secret_versions WHERE owner_id = %s"
                row = connection.execute(query, (f"crd_{key}",)).fetchone()
                return row is not None and row[0] == "ended"

            await world.until(swept, "the sweeper has ended what nobody finished")
            assert (await http.post("/v1/credentials", json=body)).status_code == 201
