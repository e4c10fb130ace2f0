"""The change feed: cursors, filters, what each caller may see, streams and how they end."""

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Iterator

import httpx
import psycopg
import pytest

from gpuaas_contract.changes import Change
from gpuaas_contract.identity import Role, User
from gpuaas_platform.core.database import Database
from gpuaas_platform.core.openbao import OpenBao
from gpuaas_platform.feed.service.cursors import Cursors
from gpuaas_platform.identity.service import tokens as token_module
from gpuaas_platform.identity.service.signing_keys import SigningKeys
from gpuaas_platform.identity.service.tokens import TokenService
from gpuaas_sdk.changes import Relist
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_sdk.errors import ApiError, CursorExpiredError, InvalidRequestError, NotFoundError
from gpuaas_sdk.events import Event
from gpuaas_stack.settings import Settings
from tests.http.conftest import FAILED
from tests.support.feed_platform import FeedPlatform, SharedFeed, client_of, event_stream, feed_platform
from tests.support.waiting import until, wait_until
from tests.support.world import make_key

PASSWORD = "a password for readers"
STREAMS = 10
HEARTBEAT_SECONDS = 10
CHOSEN = {"feed_streams_per_principal": str(STREAMS), "feed_heartbeat_seconds": str(HEARTBEAT_SECONDS)}


@pytest.fixture(scope="module")
def shared_feed(servers: Settings) -> Iterator[SharedFeed]:
    shared = SharedFeed(servers, **CHOSEN)
    try:
        yield shared
    finally:
        shared.end()


@pytest.fixture
def platform(request: pytest.FixtureRequest, servers: Settings) -> Iterator[FeedPlatform]:
    if request.node.get_closest_marker("own_platform"):
        with feed_platform(servers, **CHOSEN) as platform:
            yield platform
        return
    shared: SharedFeed = request.getfixturevalue("shared_feed")
    yield shared.platform()
    if request.node.stash.get(FAILED, False):
        shared.end()


@pytest.fixture
async def admin(platform: FeedPlatform) -> AsyncIterator[GpuaasClient]:
    async with platform.admin() as client:
        yield client


@pytest.fixture
async def tenant_id(admin: GpuaasClient, request: pytest.FixtureRequest) -> str:
    name = request.node.name.replace("_", "-")[:40].rstrip("-")
    return (await admin.tenants.create(name)).id


async def a_user(admin: GpuaasClient, role: Role, **scope: str) -> tuple[User, GpuaasClient]:
    user = await admin.users.create(f"user-{time.time_ns()}@example.com", PASSWORD)
    await admin.memberships.create(user.id, role, **scope)
    async with GpuaasClient(admin.api_url, PasswordCredentials(user.email, PASSWORD)) as login:
        return user, client_of(admin.api_url, await login.token())


async def take(client: GpuaasClient, cursor: str, count: int) -> list[Change]:
    seen: list[Change] = []
    async with asyncio.timeout(20):
        async for change in client.changes(since=cursor):
            assert not isinstance(change, Relist)
            seen.append(change)
            if len(seen) >= count:
                break
    return seen


async def now(client: GpuaasClient) -> str:
    return (await client.changes().page(wait=0)).next_cursor


async def caught_up(admin: GpuaasClient, tenant_id: str) -> None:
    """Until the feed has all that was done so far: the newest thing that was done is in it."""
    cursor = await now(admin)
    newest = await admin.tenants.update(tenant_id, title=f"at {time.time_ns()}")
    async with asyncio.timeout(20):
        async for change in admin.changes(since=cursor, nouns=["tenant"], tenant_id=tenant_id):
            if isinstance(change, Change) and change.revision == newest.revision:
                return


async def settled(admin: GpuaasClient, cursor: str, count: int) -> None:
    """Until the sequencer has dealt with so many changes: an administrator sees all."""
    assert len(await take(admin, cursor, count)) >= count


async def next_event(events: AsyncIterator[Event], name: str, seconds: float = 15) -> Event:
    async with asyncio.timeout(seconds):
        async for event in events:
            if event.name == name:
                return event
    raise AssertionError(f"the stream ended without {name}")


# Cursors


async def test_cursors_are_for_their_owner_and_tell_nothing(
    platform: FeedPlatform, admin: GpuaasClient, tenant_id: str
) -> None:
    _, ada = await a_user(admin, Role.TENANT_ADMIN, tenant_id=tenant_id)
    await caught_up(admin, tenant_id)
    async with ada:
        cursor = await now(ada)
        assert cursor != await now(ada), "the same place looks different each time"
        flipped = cursor[:20] + ("A" if cursor[20] != "A" else "B") + cursor[21:]
        for wrong in (flipped, "garbled", cursor[:-4], "", "ÿ", "a" * 60, await now(admin), await future(platform)):
            with pytest.raises(InvalidRequestError) as refused:
                await ada.changes(since=wrong).page(wait=0)
            assert refused.value.code == "cursor_invalid", wrong
        with pytest.raises(InvalidRequestError):
            await ada.changes(since="x" * 1000).page(wait=0)
        assert (await ada.changes(since=cursor).page(wait=0)).items == []


async def future(platform: FeedPlatform) -> str:
    """Made with the platform's own key, for a place that the feed has not reached."""
    database, openbao = Database(platform.database_url), OpenBao(platform.vault_addr, platform.vault_token_file)
    await database.open()
    cursors = Cursors(database, openbao)
    await cursors.start()
    async with platform.admin() as admin:
        principal = await admin.principal()
    await database.close()
    await openbao.close()
    return cursors.encode(10_000_000, principal.id)


async def test_a_future_cursor_is_refused(platform: FeedPlatform, admin: GpuaasClient) -> None:
    for stream in (False, True):
        with pytest.raises(ApiError) as refused:
            await anext(aiter(admin.changes(since=await future(platform), stream=stream)))
        assert refused.value.code == "cursor_invalid"


@pytest.mark.own_platform("it sweeps the whole feed")
async def test_old_changes_are_swept_and_their_cursors_expire(
    platform: FeedPlatform, admin: GpuaasClient, tenant_id: str
) -> None:
    await caught_up(admin, tenant_id)
    old = await now(admin)
    for title in ("one", "two", "three"):
        await admin.tenants.update(tenant_id, title=title)
    await settled(admin, old, 3)
    async with await psycopg.AsyncConnection.connect(platform.database_url, autocommit=True) as connection:
        await connection.execute("UPDATE changes SET at = now() - interval '30 days'")
        before = await _mark(connection, "head")
        async with asyncio.timeout(60):
            while await _mark(connection, "swept") < before:  # noqa: ASYNC110 - the sweeper comes by itself
                await asyncio.sleep(0.1)
        assert (await (await connection.execute("SELECT count(*) FROM changes")).fetchone()) == (0,)

        async def refusal() -> ApiError | None:
            try:
                await admin.changes(since=old).page(wait=0)
            except CursorExpiredError as error:
                return error
            return None

        async with asyncio.timeout(60):
            while (gone := await refusal()) is None:  # noqa: ASYNC110 - each process hears of it by itself
                await asyncio.sleep(0.05)
        assert "list" in gone.detail
        assert gone.allowed_actions[0].action == "relist"
        # The numbers go on, although not one row is left of those before.
        feed = aiter(admin.changes(since=old))
        assert isinstance(await anext(feed), Relist)
        await admin.tenants.update(tenant_id, title="four")
        change = await anext(feed)
        assert isinstance(change, Change)
        assert (change.noun, change.event) == ("tenant", "updated")
        assert await _mark(connection, "head") == before + 1
        page = await admin.changes(since="start").page(wait=0)
        assert [item.resource_id for item in page.items] == [tenant_id]


async def _mark(connection: psycopg.AsyncConnection[tuple[int]], name: str) -> int:
    row = await (await connection.execute("SELECT position FROM feed_marks WHERE name = %s", [name])).fetchone()
    assert row is not None
    return row[0]


# What each caller sees


async def test_a_change_that_one_may_not_see_does_not_exist(admin: GpuaasClient, tenant_id: str) -> None:
    mine = await admin.projects.create(tenant_id, "mine")
    other = await admin.projects.create(tenant_id, "other")
    stranger = await admin.tenants.create(f"stranger-{time.time_ns()}")
    _, viewer = await a_user(admin, Role.PROJECT_VIEWER, project_id=mine.id)
    _, head = await a_user(admin, Role.TENANT_ADMIN, tenant_id=tenant_id)
    await caught_up(admin, tenant_id)
    async with viewer, head:
        places = {client: await now(client) for client in (viewer, head, admin)}
        await admin.tenants.update(stranger.id, title="not yours")
        await admin.tenants.update(tenant_id, title="ours")
        await admin.projects.update(other.id, title="other")
        await admin.service_accounts.create(mine.id, "robot", make_key()[1])
        await admin.projects.update(mine.id, title="mine")
        seen: dict[GpuaasClient, list[tuple[str, str, bool]]] = {client: [] for client in places}
        for client, place in places.items():
            async for change in client.changes(since=place):
                assert isinstance(change, Change)
                seen[client].append((change.noun, change.event, change.resource_id == stranger.id))
                if (change.noun, change.resource_id) == ("project", mine.id):
                    break
        assert [noun for noun, _, _ in seen[viewer]] == ["tenant", "project"]
        assert [noun for noun, _, _ in seen[head]] == ["tenant", "project", "service_account", "project"]
        assert ("tenant", "updated", True) in seen[admin]
        assert not any(strange for _, _, strange in [*seen[viewer], *seen[head]])


async def test_filters(admin: GpuaasClient, tenant_id: str) -> None:
    one = await admin.projects.create(tenant_id, "one")
    two = await admin.projects.create(tenant_id, "two")
    _, viewer = await a_user(admin, Role.PROJECT_VIEWER, project_id=one.id)
    await caught_up(admin, tenant_id)
    cursor = await now(admin)
    await admin.tenants.update(tenant_id, title="t")
    await admin.projects.update(one.id, title="t")
    await admin.projects.update(two.id, title="t")
    await settled(admin, cursor, 3)

    async def seen(**filters: object) -> list[str]:
        page = await admin.changes(since=cursor, **filters).page(wait=0)  # type: ignore[arg-type]
        return [item.resource_id for item in page.items]

    assert await seen(tenant_id=tenant_id) == [tenant_id, one.id, two.id]
    assert await seen(project_id=two.id) == [two.id]
    assert await seen(nouns=["tenant"], tenant_id=tenant_id) == [tenant_id]
    assert await seen(nouns=["tenant", "project"]) == [tenant_id, one.id, two.id]
    assert await seen(nouns=["operation"]) == []
    with pytest.raises(InvalidRequestError):
        await seen(nouns=["nonsense"])
    async with viewer:
        with pytest.raises(NotFoundError):
            await viewer.changes(project_id=two.id).page(wait=0)
        nowhere = viewer.changes(since="start", tenant_id="ten_00000000000000000000000000")
        assert (await nowhere.page(wait=0)).items == []


# Streams


async def test_a_stream_goes_on_from_the_last_event_id(platform: FeedPlatform, admin: GpuaasClient) -> None:
    token = await admin.token()
    tenant = await admin.tenants.create(f"stream-{time.time_ns()}")
    await caught_up(admin, tenant.id)
    async with event_stream(platform.api_url, token, tenant_id=tenant.id) as events:
        first = await anext(events)
        assert first.id, "the place is told before anything happens"
        assert first.data == ""
        await admin.tenants.update(tenant.id, title="one")
        await admin.tenants.update(tenant.id, title="two")
        one = await next_event(events, "change")
        assert json.loads(one.data)["resource_id"] == tenant.id
    async with event_stream(platform.api_url, token, last_event_id=one.id, since="start", tenant_id=tenant.id) as more:
        two = await next_event(more, "change")
    assert json.loads(two.data)["revision"] == json.loads(one.data)["revision"] + 1
    page = await admin.changes(since=two.id, tenant_id=tenant.id).page(wait=0)
    assert page.items == [], "ids of events are cursors of pages"


async def test_an_idle_stream_has_a_heart_beat(platform: FeedPlatform, admin: GpuaasClient) -> None:
    url = platform.add_process("api-lively", feed_heartbeat_seconds="0.1")
    headers = {"Authorization": f"Bearer {await admin.token()}", "Accept": "text/event-stream"}
    async with (
        httpx.AsyncClient(base_url=url, headers=headers, timeout=15) as http,
        http.stream("GET", "/v1/changes", params={"noun": "node"}) as response,
    ):
        beats = (line async for line in response.aiter_lines() if line.startswith(":"))
        assert [await anext(beats) for _ in range(3)] == [": still here"] * 3
    platform.stop("api-lively")


async def ends_with(platform: FeedPlatform, token: str, end: object) -> dict[str, object]:
    """Read the last event, after `end` was awaited while the stream was open."""
    async with event_stream(platform.api_url, token) as events:
        await anext(events)
        await end  # type: ignore[misc]
        # At once, and not only with the next heart-beat.
        problem = json.loads((await next_event(events, "end", HEARTBEAT_SECONDS - 1)).data)
        with pytest.raises(StopAsyncIteration):
            await anext(events)
    assert isinstance(problem, dict)
    return problem


async def test_a_stream_ends_with_the_login_behind_it(
    platform: FeedPlatform, admin: GpuaasClient, tenant_id: str
) -> None:
    user, ada = await a_user(admin, Role.TENANT_ADMIN, tenant_id=tenant_id)
    async with ada:
        problem = await ends_with(platform, await ada.token(), ada.sessions.end_current())
        assert (problem["code"], problem["status"]) == ("unauthenticated", 401)
        assert problem["detail"]
        assert problem["correlation_id"]
    user, bob = await a_user(admin, Role.TENANT_ADMIN, tenant_id=tenant_id)
    async with bob:
        problem = await ends_with(platform, await bob.token(), admin.users.update(user.id, disabled=True))
        assert "disabled" in str(problem["detail"])


async def test_a_long_poll_ends_with_the_login_behind_it(
    platform: FeedPlatform, admin: GpuaasClient, tenant_id: str
) -> None:
    user, ada = await a_user(admin, Role.TENANT_ADMIN, tenant_id=tenant_id)
    async with ada:
        cursor, url = await now(ada), platform.add_process("api-narrow", feed_streams_per_principal="1")
        async with client_of(url, await ada.token()) as poller:
            waiting = asyncio.create_task(poller.changes(since=cursor, nouns=["node"]).page(wait=25))
            await until_polling(url, await ada.token(), cursor)
            await admin.users.update(user.id, disabled=True)
            async with asyncio.timeout(15):
                with pytest.raises(ApiError) as refused:
                    await waiting
        assert refused.value.code == "unauthenticated"
    platform.stop("api-narrow")


async def until_polling(url: str, token: str, cursor: str) -> None:
    """Until the one poll that the process allows a principal at a time is somebody else's than ours."""
    headers = {"Authorization": f"Bearer {token}"}
    async with httpx.AsyncClient(base_url=url, headers=headers) as http:

        async def is_polling() -> bool:
            answer = await http.get("/v1/changes", params={"since": cursor, "wait": 0.01})
            return answer.status_code == 429

        await until(is_polling, "the poll waits")


async def test_a_stream_ends_with_its_token(
    platform: FeedPlatform, admin: GpuaasClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(token_module, "TOKEN_SECONDS", 2)
    tenant = await admin.tenants.create(f"short-{time.time_ns()}")
    project = await admin.projects.create(tenant.id, "short")
    account = await admin.service_accounts.create(project.id, "short", make_key()[1])
    database, openbao = Database(platform.database_url), OpenBao(platform.vault_addr, platform.vault_token_file)
    await database.open()
    keys = SigningKeys(openbao, database, 30)
    await keys.start()
    token = (await TokenService(keys, database).issue(account.id, 1)).access_token
    async with event_stream(platform.api_url, token) as events:
        # Its life of 2 s, 5 s that are granted to clocks that differ, and a bit.
        problem = json.loads((await next_event(events, "end")).data)
    assert problem["code"] == "unauthenticated"
    await database.close()
    await openbao.close()


async def test_a_role_that_is_taken_away_closes_the_view(
    platform: FeedPlatform, admin: GpuaasClient, tenant_id: str
) -> None:
    one = await admin.projects.create(tenant_id, "one")
    two = await admin.projects.create(tenant_id, "two")
    user, ada = await a_user(admin, Role.PROJECT_VIEWER, project_id=one.id)
    kept = await admin.memberships.create(user.id, Role.PROJECT_VIEWER, project_id=two.id)
    assert kept.id
    lost = (await admin.memberships.list(user_id=user.id, project_id=one.id).all())[0]
    async with ada, event_stream(platform.api_url, await ada.token()) as events:
        await anext(events)
        await admin.projects.update(one.id, title="seen")
        assert json.loads((await next_event(events, "change")).data)["resource_id"] == one.id
        await admin.memberships.delete(lost.id)
        await admin.projects.update(one.id, title="not seen")
        await admin.projects.update(two.id, title="seen")
        assert json.loads((await next_event(events, "change")).data)["resource_id"] == two.id


async def test_one_principal_has_so_many_streams(platform: FeedPlatform, admin: GpuaasClient, tenant_id: str) -> None:
    _, ada = await a_user(admin, Role.TENANT_ADMIN, tenant_id=tenant_id)
    async with ada:
        token = await ada.token()
        headers = {"Authorization": f"Bearer {token}", "Accept": "text/event-stream"}
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(base_url=platform.api_url, headers=headers, limits=limits) as http:
            requests = [http.build_request("GET", "/v1/changes") for _ in range(STREAMS + 15)]
            answers = await asyncio.gather(*(http.send(request, stream=True) for request in requests))
            refused = [answer for answer in answers if answer.status_code == 429]
            assert len(refused) == 15
            problem = json.loads(await refused[0].aread())
            assert problem["code"] == "rate_limited"
            assert str(STREAMS) in problem["detail"]
            assert refused[0].headers["retry-after"]
            # A poll that does not wait holds nothing, so it is let in.
            cursor = await now(ada)
            page = await http.get("/v1/changes", params={"since": cursor, "wait": 1}, headers={"Accept": "*/*"})
            assert page.status_code == 429
            for answer in answers:
                await answer.aclose()

            async def room() -> bool:
                query: dict[str, str | float] = {"since": cursor, "wait": 0.01}
                return (await http.get("/v1/changes", params=query, headers={"Accept": "*/*"})).status_code == 200

            async with asyncio.timeout(10):
                while not await room():  # noqa: ASYNC110 - the process notices by itself that they have left
                    await asyncio.sleep(0.05)


@pytest.mark.own_platform("it fills the feed, and measures the process")
async def test_a_slow_reader_holds_no_memory(platform: FeedPlatform, admin: GpuaasClient) -> None:
    """Much more is waiting for it than may be held: the rest stays in the database."""
    await admin.tenants.create(f"slow-{time.time_ns()}")
    rows = 40_000
    async with await psycopg.AsyncConnection.connect(platform.database_url, autocommit=True) as connection:
        await connection.execute(
            """INSERT INTO changes (noun, resource_id, event, message, revision, correlation_id)
               SELECT 'node', 'nod_' || n, 'noted', repeat('x', 2000), n, 'cor_slow' FROM generate_series(1, %s) n""",
            [rows],
        )
        async with asyncio.timeout(120):
            while True:
                cursor = await connection.execute("SELECT count(*) FROM changes WHERE position IS NULL")
                if await cursor.fetchone() == (0,):
                    break
                await asyncio.sleep(0.2)
    token = await admin.token()
    before = platform.memory_mib()
    slow = [_connect(platform, token) for _ in range(STREAMS - 1)]
    # Another reader gets all of it meanwhile, in order.
    count = 0
    async with event_stream(platform.api_url, token, since="start", noun="node") as events:
        async for event in events:
            if event.name == "change":
                count += 1
                if count == rows:
                    break
    grown = platform.memory_mib() - before
    print(f"{len(slow)} slow readers and a quick one over {rows * 2.3 / 1000:.0f} MB of changes: {grown:.1f} MiB more")
    for reader in slow:
        reader.close()
    assert grown < 60


def _connect(platform: FeedPlatform, token: str) -> socket.socket:
    """Asks for everything, and reads nothing of it."""
    reader = socket.socket()
    reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    reader.connect(("127.0.0.1", platform.settings.api_port))
    request = (
        f"GET /v1/changes?since=start HTTP/1.1\r\nHost: platform\r\nAuthorization: Bearer {token}\r\n"
        "Accept: text/event-stream\r\n\r\n"
    )
    reader.sendall(request.encode())
    return reader


async def test_a_process_that_ends_says_so(platform: FeedPlatform, admin: GpuaasClient) -> None:
    url = platform.add_process("api-brief")
    async with event_stream(url, await admin.token()) as events:
        await anext(events)
        await asyncio.to_thread(platform.stop, "api-brief")
        problem = json.loads((await next_event(events, "end")).data)
    # Whom the server cuts off when its patience ends hears nothing: this one was let go before.
    assert (problem["code"], problem["retryable"]) == ("unavailable", True)


@pytest.mark.own_platform("it counts connections to the database")
def test_one_listening_connection_per_process(platform: FeedPlatform) -> None:
    with psycopg.connect(platform.database_url, autocommit=True) as connection:
        query = "SELECT count(*) FROM pg_stat_activity WHERE query LIKE 'LISTEN%' AND datname = current_database()"
        # The one of a process that has just ended takes a moment to go.
        wait_until(lambda: connection.execute(query).fetchone() == (1,), "each process listens once")
