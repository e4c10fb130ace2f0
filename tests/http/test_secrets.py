"""Run-time secrets of app instances: made once, delivered once per lease, gone with the instance."""

import asyncio
import string

import httpx
import pytest

from gpuaas_contract.credentials import VersionState
from gpuaas_contract.manifest import Manifest
from gpuaas_contract.problems import Code
from gpuaas_contract.secrets import SecretKind, SecretSpec
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import ServiceAccountCredentials
from gpuaas_sdk.errors import (
    AlreadyDeliveredError,
    ForbiddenError,
    InvalidRequestError,
    NameTakenError,
    NotFoundError,
    StaleLeaseError,
)
from gpuaas_sdk.runtime.errors import RetryLater
from gpuaas_sdk.runtime.secrets import LeaseSecrets
from gpuaas_stack.settings import Settings
from tests.support.database import audited
from tests.support.identity import unique
from tests.support.leases import decommission, hold_lease
from tests.support.openbao import Vault
from tests.support.world import MANIFEST, World, make_key

BYTES = SecretSpec(kind=SecretKind.BYTES, size=48)
PASSWORD = SecretSpec(kind=SecretKind.PASSWORD, size=20, alphabet="abcdefghij0123456789")


async def test_made_once_and_the_same_for_every_lease(world: World) -> None:
    lease = await hold_lease(world)
    work = world.controller.secrets
    key = await work.ensure(*lease.both, "shared-key", BYTES)
    assert await work.ensure(*lease.both, "shared-key", BYTES) == key
    assert await work.ensure(*lease.both, "shared-key") == key
    password = await work.ensure(*lease.both, "database", PASSWORD)
    value = await lease.secret(key.id)
    assert len(value.reveal()) == 48
    word = (await lease.secret(password.id)).reveal_text()
    assert len(word) == 20
    assert set(word) <= set("abcdefghij0123456789")
    lease = await lease.claim_again()
    assert (await lease.secret(key.id)).reveal() == value.reveal()
    listed = await world.admin.secrets.list(lease.instance_id).all()
    assert [secret.name for secret in listed] == ["shared-key", "database"]
    assert await world.admin.secrets.get(key.id) == key


async def test_once_per_lease(world: World, settings: Settings) -> None:
    lease = await hold_lease(world)
    made = await world.controller.secrets.ensure(*lease.both, "once", BYTES)
    delivery = await world.controller.secrets.deliver(made.id, *lease.both)
    await lease.unwrap(delivery)
    with pytest.raises(AlreadyDeliveredError) as refused:
        await lease.unwrap(delivery)
    assert refused.value.code == Code.DELIVERY_USED
    with pytest.raises(AlreadyDeliveredError) as refused:
        await lease.secret(made.id)
    assert refused.value.code == Code.ALREADY_DELIVERED
    account = world.account.id
    assert len(audited(settings, "secret.unwrap", account)) == 1
    assert len(audited(settings, "secret.unwrap", account, "denied")) == 1
    # Another lease of the same instance is another one, too.
    await (await lease.claim_again()).secret(made.id)


async def test_the_runtime_fetches_each_once(world: World, settings: Settings) -> None:
    made = await world.admin.credentials.create(world.project.id, "outside")
    lease = await hold_lease(world, access=made)
    held = LeaseSecrets(world.controller, *lease.both)
    first, second = await asyncio.gather(held.secret("key", BYTES), held.secret("key", BYTES))
    assert first is second
    for shown in (repr(first), str(first), f"{first}", f"{first!r}", f"{first}", repr([first])):
        assert shown.strip("[]") == f"SecretValue({first.owner_id}, version 1, hidden)"
    assert "OPENSSH PRIVATE KEY" in (await held.credential(made.id)).reveal_text()
    await held.credential(made.id)
    assert len(audited(settings, "secret.unwrap", world.account.id)) == 2
    # A second process under the same lease, or one whose answer got lost: hand the lease back, and claim again.
    with pytest.raises(RetryLater):
        await LeaseSecrets(world.controller, *lease.both).secret("key")
    lease = await lease.claim_again()
    again = await LeaseSecrets(world.controller, *lease.both).secret("key")
    assert again.reveal() == first.reveal()


async def test_twelve_ask_for_a_missing_one_at_once(world: World, vault: Vault) -> None:
    lease = await hold_lease(world)
    before = set(vault.owners())
    made = await asyncio.gather(*(world.controller.secrets.ensure(*lease.both, "raced", BYTES) for _ in range(12)))
    assert len({secret.id for secret in made}) == 1

    async def losers_are_gone() -> bool:
        return set(vault.owners()) - before == {made[0].id}

    await world.until(losers_are_gone, "the values that lost the race are destroyed")
    assert await world.admin.secrets.list(lease.instance_id).all() == [made[0]]


async def test_rotation_keeps_the_one_before(world: World, vault: Vault) -> None:
    lease = await hold_lease(world)
    made = await world.controller.secrets.ensure(*lease.both, "turning", PASSWORD)
    first = await lease.secret(made.id)
    assert (await world.admin.secrets.rotate(made.id, revision=made.revision)).versions[-1].version == 2
    second = await lease.secret(made.id)
    assert second.reveal() != first.reveal()
    lease = await lease.claim_again()
    assert (await lease.secret(made.id, 1)).reveal() == first.reveal()
    rotated = await world.admin.secrets.rotate(made.id)
    assert [v.state == VersionState.VALID for v in rotated.versions] == [False, True, True]

    async def destroyed() -> bool:
        return not vault.knows(made.id, 1)

    await world.until(destroyed, "the oldest version is destroyed")


async def test_destroyed_with_the_instance(world: World, vault: Vault) -> None:
    lease = await hold_lease(world)
    made = await world.controller.secrets.ensure(*lease.both, "mortal", BYTES)
    assert vault.value(made.id) is not None
    await decommission(world, lease.instance_id)
    with pytest.raises(NotFoundError):
        await world.admin.secrets.get(made.id)
    assert await world.admin.secrets.list(lease.instance_id).all() == []

    async def destroyed() -> bool:
        return not vault.knows(made.id)

    await world.until(destroyed, "the secret is destroyed")


async def test_for_its_own_instance_and_its_own_controller_only(world: World, settings: Settings) -> None:
    mine, other = await hold_lease(world, "mine"), await hold_lease(world, "other")
    made = await world.controller.secrets.ensure(*mine.both, "key", BYTES)
    with pytest.raises(NotFoundError):
        await other.secret(made.id)
    stale, mine = mine, await mine.claim_again()
    for refused in (
        world.controller.secrets.ensure(*stale.both, "key"),
        world.controller.secrets.deliver(made.id, *stale.both),
    ):
        with pytest.raises(StaleLeaseError):
            await refused
    for refused in (
        world.admin.secrets.ensure(*mine.both, "key"),
        world.admin.secrets.deliver(made.id, *mine.both),
        world.controller.secrets.rotate(made.id),
    ):
        with pytest.raises(ForbiddenError):
            await refused
    private, public = make_key()
    stranger = await world.admin.service_accounts.create(
        world.project.id, unique("s"), public, app_slug=await world.other_app()
    )
    async with GpuaasClient(settings.api_url, ServiceAccountCredentials(stranger.id, private)) as client:
        with pytest.raises(NotFoundError):
            await client.secrets.deliver(made.id, *mine.both)


async def test_what_the_manifest_declares(world: World) -> None:
    declared = [{"name": "cluster-key", "kind": "bytes", "size": 64}, {"name": "word", "kind": "password"}]
    changes = {"slug": world.app_slug, "version": "1.2.0", "secrets": declared}
    await world.admin.app_versions.publish(Manifest.model_validate({**MANIFEST, **changes}))
    lease = await hold_lease(world)
    ensure = world.controller.secrets.ensure
    value = await lease.secret((await ensure(*lease.both, "cluster-key")).id)
    assert len(value.reveal()) == 64
    word = await lease.secret((await ensure(*lease.both, "word")).id)
    assert len(word.reveal()) == 32
    assert set(word.reveal_text()) <= set(string.ascii_letters + string.digits)
    with pytest.raises(InvalidRequestError, match="declares no secret"):
        await ensure(*lease.both, "undeclared")
    with pytest.raises(InvalidRequestError, match="otherwise"):
        await ensure(*lease.both, "word", BYTES)
    await ensure(*lease.both, "own", BYTES)
    with pytest.raises(NameTakenError):
        await ensure(*lease.both, "own", PASSWORD)


BAD_SPECS: dict[str, dict[str, object]] = {
    "/spec/kind": {"kind": "poem"},
    "/spec/size": {"kind": "bytes", "size": 1_000_000},
    "/spec/alphabet": {"kind": "password", "size": 20, "alphabet": "with blank"},
    "/spec/colour": {"kind": "bytes", "colour": "red"},
    "/spec": {"kind": "password", "size": 8, "alphabet": "ab"},
}
WEAK: list[dict[str, object]] = [
    {"kind": "bytes", "size": 15},
    {"kind": "bytes", "alphabet": "abc"},
    {"kind": "password", "alphabet": "aab"},
]


async def test_bad_input_is_refused_with_a_pointer(world: World, settings: Settings, vault: Vault) -> None:
    lease = await hold_lease(world)
    token = (await world.controller.fetch_token()).access_token
    before = set(vault.owners())
    async with httpx.AsyncClient(base_url=settings.api_url, headers={"Authorization": f"Bearer {token}"}) as http:
        path = f"/v1/operations/{lease.operation_id}/secrets"
        cases = [*BAD_SPECS.items(), *(("/spec", spec) for spec in WEAK)]
        for pointer, spec in cases:
            body = {"fencing_token": lease.fencing_token, "name": "bad", "spec": spec}
            answer = await http.post(path, json=body)
            assert answer.status_code == 422, spec
            assert [error["pointer"] for error in answer.json()["errors"]] == [pointer]
        for name in ("", "Upper", "../../up", "a/b", "a" * 64, "nul\u0000"):
            answer = await http.post(path, json={"fencing_token": lease.fencing_token, "name": name})
            assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/name"), name
        answer = await http.post("/v1/secrets/sec_nothing/deliveries", json={"version": 0})
        assert {error["pointer"] for error in answer.json()["errors"]} == {
            "/operation_id",
            "/fencing_token",
            "/version",
        }
    assert set(vault.owners()) - before == set()
