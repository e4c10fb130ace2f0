"""Invariants while parts of the platform are killed, stopped and started under load.

The platform here is this module's own, since the tests break it."""

import asyncio
import os
import secrets
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import httpx
import psycopg
import pytest

from gpuaas_contract.changes import Change
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_stack.openbao import OpenBao
from gpuaas_stack.postgres import Postgres
from gpuaas_stack.service import ServiceState, read_state
from gpuaas_stack.settings import Settings
from gpuaas_stack.supervision import Supervision
from tests.support.database import connect
from tests.support.load import Load
from tests.support.processes import metrics_header
from tests.support.services import admin_credentials, mend, platform_services

KILLS = 2
ACKNOWLEDGED_BETWEEN = 15


@pytest.fixture(scope="module")
def broken() -> Iterator[Settings]:
    with platform_services("faults") as settings:
        yield settings


@pytest.fixture(autouse=True)
def mended(broken: Settings) -> Iterator[None]:
    """Bring back what a test has stopped, also after one that failed in the middle."""
    yield
    mend(broken)


@pytest.fixture
async def client(broken: Settings) -> AsyncIterator[GpuaasClient]:
    async with GpuaasClient(broken.api_url, PasswordCredentials(*admin_credentials(broken))) as client:
        yield client


async def until(condition: Callable[[], Awaitable[object]], what: str, seconds: float = 30) -> None:
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not await condition():
        assert loop.time() < deadline, f"waited {seconds} s until {what}"
        await asyncio.sleep(0.05)


def api_state(settings: Settings) -> ServiceState:
    state = read_state(Supervision(settings.state_dir).run_dir, "api")
    assert state is not None
    return state


@asynccontextmanager
async def under_load(client: GpuaasClient) -> AsyncIterator[Load]:
    """Leaves only when every request that was begun has been acknowledged."""
    tenant = await client.tenants.create(f"t{secrets.token_hex(6)}")
    load = Load(client, tenant.id)
    running = asyncio.create_task(load.run())
    try:
        await grown(load)
        yield load
        await grown(load)
    finally:
        load.stopping.set()
        await running
    print(f"{len(load.acknowledged)} acknowledged, {load.lost_answers} lost answers, refused: {dict(load.refusals)}")
    assert not load.surprises, load.surprises[:5]


async def grown(load: Load) -> None:
    before = len(load.acknowledged)

    async def enough() -> bool:
        return len(load.acknowledged) >= before + ACKNOWLEDGED_BETWEEN or bool(load.surprises)

    await until(enough, f"{ACKNOWLEDGED_BETWEEN} more requests are acknowledged", 60)


async def check_effects(settings: Settings, client: GpuaasClient, load: Load, since: str) -> None:
    """Nothing acknowledged is lost, nothing is there twice, and the feed has no gap."""
    with connect(settings) as database:
        stored = dict(database.execute("SELECT name, id FROM projects WHERE tenant_id = %s", [load.tenant_id]))
        assert stored == load.acknowledged
        audited = [
            target
            for (target,) in database.execute(
                "SELECT target FROM audit_entries WHERE action = 'project.create' AND chain = %s", [load.tenant_id]
            )
        ]
        assert sorted(audited) == sorted(stored.values())
        await until(lambda: sequenced(database), "every change has its place in the feed")
        row = database.execute("SELECT count(*), min(position), max(position) FROM changes").fetchone()
        assert row is not None
        count, first, last = row
        assert (first, last) == (1, count)
    seen: list[str] = []
    async for change in client.changes(since=since):
        assert isinstance(change, Change)
        if change.noun == "project" and change.resource_id in set(stored.values()):
            seen.append(change.resource_id)
        if len(seen) == len(stored):
            break
    assert sorted(seen) == sorted(stored.values())


async def sequenced(database: psycopg.Connection) -> bool:
    row = database.execute("SELECT count(*) FROM changes WHERE position IS NULL").fetchone()
    return row == (0,)


async def feed_cursor(client: GpuaasClient) -> str:
    token = (await client.fetch_token()).access_token
    async with httpx.AsyncClient(base_url=client.api_url, headers={"Authorization": f"Bearer {token}"}) as http:
        return str((await http.get("/v1/changes")).json()["next_cursor"])


async def test_64_clients_with_one_key_have_one_effect(broken: Settings, client: GpuaasClient) -> None:
    tenant = await client.tenants.create(f"t{secrets.token_hex(6)}")
    token = (await client.fetch_token()).access_token
    headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": secrets.token_hex(8)}
    body = {"tenant_id": tenant.id, "name": "raced"}
    start = asyncio.Event()

    async def ask() -> httpx.Response:
        async with httpx.AsyncClient(base_url=broken.api_url, headers=headers, timeout=60) as http:
            await start.wait()
            return await http.post("/v1/projects", json=body)

    asking = [asyncio.create_task(ask()) for _ in range(64)]
    await asyncio.sleep(0)
    start.set()
    answers = await asyncio.gather(*asking)
    assert {answer.status_code for answer in answers} <= {201, 409}
    assert {a.json()["code"] for a in answers if a.status_code == 409} <= {"idempotency_in_flight"}
    assert all(int(a.headers["retry-after"]) >= 1 for a in answers if a.status_code == 409)
    done = [answer for answer in answers if answer.status_code == 201]
    assert len({answer.content for answer in done}) == 1
    assert sum("idempotency-replayed" not in answer.headers for answer in done) == 1
    with connect(broken) as database:
        for table, column in {"projects": "id", "audit_entries": "target", "changes": "resource_id"}.items():
            query = f"SELECT count(*) FROM {table} WHERE {column} = %s"
            assert database.execute(query.encode(), [done[0].json()["id"]]).fetchone() == (1,)


async def test_a_killed_api_loses_and_repeats_nothing(broken: Settings, client: GpuaasClient) -> None:
    since = await feed_cursor(client)
    async with under_load(client) as load:
        for _ in range(KILLS):
            state = api_state(broken)
            assert state.process is not None
            os.kill(state.process.pid, signal.SIGKILL)

            async def is_back(before: int = state.starts) -> bool:
                now = api_state(broken)
                return now.starts > before and now.phase == "ready"

            await until(is_back, "the supervisor has started the API again", 60)
            await grown(load)
    assert load.lost_answers, "the kill hit requests that were under way"
    await check_effects(broken, client, load, since)


async def test_a_stopped_database_is_waited_for(broken: Settings, client: GpuaasClient) -> None:
    since, before = await feed_cursor(client), api_state(broken)
    supervision = Supervision(broken.state_dir)
    async with under_load(client) as load:
        await asyncio.to_thread(supervision.remove_service, "postgres")
        async with httpx.AsyncClient(base_url=broken.api_url, timeout=30) as http:
            ready, alive = await asyncio.gather(http.get("/readyz"), http.get("/healthz"))
            metrics = (await http.get("/metrics", headers=metrics_header(broken))).text
        assert (ready.status_code, ready.json()["code"]) == (503, "unavailable")
        assert "the database" in ready.json()["detail"]
        assert int(ready.headers["retry-after"]) >= 1
        assert alive.status_code == 200
        assert "gpuaas_database_up 0.0" in metrics
        refused = load.refusals[503, "unavailable"]

        async def refuses() -> bool:
            return load.refusals[503, "unavailable"] > refused

        await until(refuses, "requests are refused with 503")
        postgres = Postgres(broken.state_dir / "postgres", broken.postgres_port)
        supervision.ensure_service(postgres.service())
        await asyncio.to_thread(supervision.wait_ready, "postgres")
    assert set(load.refusals) <= {(503, "unavailable"), (409, "idempotency_in_flight")}
    after = api_state(broken)
    assert (after.process, after.starts) == (before.process, before.starts), "the API was not restarted"
    await check_effects(broken, client, load, since)


async def test_a_stopped_secrets_server_is_waited_for(broken: Settings, client: GpuaasClient) -> None:
    before = api_state(broken)
    tenant = await client.tenants.create(f"t{secrets.token_hex(6)}")
    supervision = Supervision(broken.state_dir)
    await asyncio.to_thread(supervision.remove_service, "openbao")
    email, password = admin_credentials(broken)
    login = {"email": email, "password": password}
    async with httpx.AsyncClient(base_url=broken.api_url, timeout=30) as http:
        for answer in (await http.get("/readyz"), await http.post("/v1/auth/login", json=login)):
            assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
            assert answer.headers["content-type"] == "application/problem+json"
            assert int(answer.headers["retry-after"]) >= 1
        assert (await client.tenants.get(tenant.id)).id == tenant.id, "what needs no signature goes on"
        bao = OpenBao(broken.state_dir / "openbao", broken.openbao_port, broken.openbao_cluster_port)
        supervision.ensure_service(bao.service())

        async def logs_in() -> bool:
            return (await http.post("/v1/auth/login", json=login)).status_code == 200

        await until(logs_in, "people can log in again")
        assert (await http.get("/readyz")).status_code == 200
    after = api_state(broken)
    assert (after.process, after.starts) == (before.process, before.starts), "the API was not restarted"
