"""OpenBao sealed, stopped and away in the middle, and the API killed there: 503, nothing half-made, a clean end.

The platform here is this module's own, since the tests break it."""

import asyncio
import os
import secrets
import signal
from collections.abc import AsyncIterator, Iterator

import httpx
import psycopg
import pytest

from gpuaas_contract.credentials import CredentialStatus
from gpuaas_contract.problems import Code
from gpuaas_contract.secrets import SecretKind, SecretSpec
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_sdk.errors import NotFoundError, TransportError, UnavailableError
from gpuaas_sdk.retry import NO_RETRY
from gpuaas_stack.service import read_state
from gpuaas_stack.settings import Settings
from gpuaas_stack.supervision import Supervision
from tests.support.database import connect
from tests.support.leases import decommission, hold_lease
from tests.support.openbao import Vault
from tests.support.services import admin_credentials, mend, openbao_of, platform_services
from tests.support.waiting import wait_until
from tests.support.world import World

BYTES = SecretSpec(kind=SecretKind.BYTES)


@pytest.fixture(scope="module")
def broken() -> Iterator[Settings]:
    with platform_services("secretfaults") as settings:
        yield settings


@pytest.fixture(autouse=True)
def mended(broken: Settings) -> Iterator[None]:
    """Bring back what a test has stopped, also after one that failed in the middle."""
    yield
    mend(broken)


@pytest.fixture
def database(broken: Settings) -> Iterator[psycopg.Connection]:
    with connect(broken) as connection:
        yield connection


@pytest.fixture
def vault(broken: Settings) -> Iterator[Vault]:
    with Vault(broken) as vault:
        yield vault


@pytest.fixture
async def admin(broken: Settings) -> AsyncIterator[GpuaasClient]:
    credentials = PasswordCredentials(*admin_credentials(broken))
    async with GpuaasClient(broken.api_url, credentials, retry=NO_RETRY) as admin:
        yield admin


@pytest.fixture
async def world(admin: GpuaasClient) -> AsyncIterator[World]:
    async with World.create(admin, secrets.token_hex(4), controller_retry=NO_RETRY) as world:
        await world.controller.principal()
        yield world


def stop_openbao(settings: Settings) -> None:
    Supervision(settings.state_dir).remove_service("openbao")


def start_openbao(settings: Settings) -> None:
    Supervision(settings.state_dir).ensure_service(openbao_of(settings).service())
    wait_until(lambda: _is_active(settings), "OpenBao is unsealed again")


def _is_active(settings: Settings) -> bool:
    try:
        return httpx.get(f"{openbao_of(settings).address}/v1/sys/health", timeout=5).status_code == 200
    except httpx.TransportError:
        return False


def states(database: psycopg.Connection, owner_id: str | None = None) -> list[str]:
    query = "SELECT state FROM secret_versions WHERE %s::text IS NULL OR owner_id = %s ORDER BY created_at, version"
    return [state for (state,) in database.execute(query, (owner_id, owner_id))]


def settled(database: psycopg.Connection) -> bool:
    return not {"writing", "ending"} & set(states(database))


async def test_away_while_a_credential_is_made(broken: Settings, world: World, database: psycopg.Connection) -> None:
    key = secrets.token_hex(8)
    before = len(states(database))
    await asyncio.to_thread(stop_openbao, broken)
    try:
        with pytest.raises(UnavailableError) as refused:
            await world.admin.credentials.create(world.project.id, "patient", idempotency_key=key)
        assert refused.value.code == Code.UNAVAILABLE
        assert refused.value.retry_after
        assert await world.admin.credentials.list(project_id=world.project.id).all() == []
        assert states(database)[before:] == ["ending"], "what was intended is given up, and not forgotten"
    finally:
        await asyncio.to_thread(start_openbao, broken)
    # The same request again, with its own key.
    made = await world.admin.credentials.create(world.project.id, "patient", idempotency_key=key)
    assert (await world.admin.credentials.list(project_id=world.project.id).all()) == [made]
    await asyncio.to_thread(wait_until, lambda: settled(database), "the sweeper has ended what was given up")


async def test_sealed_in_the_middle(broken: Settings, world: World, database: psycopg.Connection, vault: Vault) -> None:
    made = await world.admin.credentials.create(world.project.id, "kept")
    lease = await hold_lease(world, access=made)
    doomed = await world.admin.credentials.create(world.project.id, "doomed")
    secret = await world.controller.secrets.ensure(*lease.both, "key", BYTES)
    delivery = await world.controller.credentials.deliver(made.id, *lease.both)
    vault.call("PUT", "sys/seal").raise_for_status()
    try:
        for refused in (
            lease.unwrap(delivery),
            lease.secret(secret.id),
            world.controller.secrets.ensure(*lease.both, "another", BYTES),
            world.admin.credentials.rotate(made.id),
            world.admin.secrets.rotate(secret.id),
        ):
            with pytest.raises(UnavailableError):
                await refused
        # What ends something needs nobody's consent.
        await world.admin.credentials.delete(doomed.id)
        with pytest.raises(NotFoundError):
            await world.admin.credentials.get(doomed.id)
        assert (await world.admin.credentials.revoke(made.id)).status == CredentialStatus.REVOKED
        await decommission(world, lease.instance_id)
        assert not settled(database)
    finally:
        await asyncio.to_thread(stop_openbao, broken)
        await asyncio.to_thread(start_openbao, broken)
    await asyncio.to_thread(wait_until, lambda: settled(database), "the sweeper has destroyed what ended meanwhile")
    for owner in (made.id, doomed.id, secret.id):
        assert not vault.knows(owner)
        assert set(states(database, owner)) == {"ended"}


async def test_a_token_outlives_a_restart_of_openbao(broken: Settings, world: World) -> None:
    made = await world.admin.credentials.create(world.project.id, "steady")
    lease = await hold_lease(world, access=made)
    delivery = await world.controller.credentials.deliver(made.id, *lease.both)
    await asyncio.to_thread(stop_openbao, broken)
    with pytest.raises(UnavailableError):
        await lease.unwrap(delivery)
    await asyncio.to_thread(start_openbao, broken)
    await world.controller.operations.heartbeat(*lease.both)
    assert "PRIVATE KEY" in (await lease.unwrap(delivery)).reveal_text()


async def test_the_api_is_killed_between_the_write_and_its_end(
    broken: Settings, admin: GpuaasClient, database: psycopg.Connection, vault: Vault
) -> None:
    tenant = await admin.tenants.create(f"t{secrets.token_hex(6)}")
    project = await admin.projects.create(tenant.id, "cut")
    before, count = set(vault.owners()), len(states(database))
    bao = pid_of(broken, "openbao")
    os.kill(bao, signal.SIGSTOP)
    try:
        asking = asyncio.create_task(admin.credentials.create(project.id, "cut"))
        await asyncio.to_thread(wait_until, lambda: len(states(database)) > count, "the intent is written")
        os.kill(pid_of(broken, "api"), signal.SIGKILL)
        with pytest.raises(TransportError):
            await asking
    finally:
        os.kill(bao, signal.SIGCONT)
    assert states(database)[count:] == ["writing"]
    database.execute("UPDATE secret_versions SET created_at = now() - interval '2 minutes' WHERE state = 'writing'")
    await asyncio.to_thread(wait_until, lambda: settled(database), "the sweeper of the next process has ended it")
    assert set(vault.owners()) - before == set()
    await asyncio.to_thread(wait_until, lambda: is_ready(broken), "the API is back")
    assert await admin.credentials.list(project_id=project.id).all() == []
    await admin.credentials.create(project.id, "cut")


def pid_of(settings: Settings, name: str) -> int:
    state = read_state(Supervision(settings.state_dir).run_dir, name)
    assert state is not None
    assert state.process is not None
    return state.process.pid


def is_ready(settings: Settings) -> bool:
    try:
        return httpx.get(f"{settings.api_url}/readyz", timeout=5).status_code == 200
    except httpx.TransportError:
        return False
