"""Many writers and many readers, on two processes that are killed and restarted: each change once and in order."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import suppress

import psycopg
import pytest

from gpuaas_contract.identity import Role
from gpuaas_sdk.changes import Relist
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_stack.settings import Settings
from tests.support.feed_platform import PATIENT, FeedPlatform, client_of, feed_platform

WRITERS = 32
READERS = 200
USERS = 4
CLIENTS_PER_USER = 2
PACE_SECONDS = 0.7
"""Between two changes of one writer: two cores serve both processes, all readers and all writers."""
PASSWORD = "a password for readers"
Seen = list[tuple[str, int]]


@pytest.fixture(scope="module")
def platform(servers: Settings) -> Iterator[FeedPlatform]:
    with feed_platform(servers) as platform:
        yield platform


async def read(client: GpuaasClient, cursor: str, last: str, *, stream: bool) -> Seen:
    seen: Seen = []
    async for change in client.changes(since=cursor, nouns=["project"], stream=stream):
        assert not isinstance(change, Relist), change
        seen.append((change.resource_id, change.revision))
        if change.resource_id == last and change.event == "updated":
            return seen
    raise AssertionError("the feed has no end")


async def write(client: GpuaasClient, own: str, shared: str, over: asyncio.Event) -> int:
    """Changes in turn what is its own and what all fight for, until it is over; returns how many it made."""
    made = 0
    while not over.is_set():
        await client.projects.update(shared if made % 2 else own, title=f"round {made}")
        made += 1
        with suppress(TimeoutError):
            await asyncio.wait_for(over.wait(), PACE_SECONDS)
    return made


async def test_every_reader_sees_every_change_once_and_in_order(platform: FeedPlatform) -> None:
    urls = [platform.api_url, platform.add_process("api-two")]
    async with platform.admin(urls[0]) as one, platform.admin(urls[1]) as two:
        tenant = await one.tenants.create("load")
        shared = await one.projects.create(tenant.id, "shared")
        last = await one.projects.create(tenant.id, "last")
        own = [await one.projects.create(tenant.id, f"own-{number}") for number in range(WRITERS)]
        clients = await _reader_clients(one, urls, tenant.id)
        # Taken by one process, used with the other: cursors are the platform's, not a process's.
        cursors = {client: (await _other(client, clients).changes().page(wait=0)).next_cursor for client in clients}
        readers = [
            asyncio.create_task(
                read(client, cursors[client], last.id, stream=bool((number // len(clients)) % 2)), name=f"r{number}"
            )
            for number in range(READERS)
            for client in [clients[number % len(clients)]]
        ]
        over = asyncio.Event()
        writers = asyncio.gather(
            *(write((one, two)[number % 2], own[number].id, shared.id, over) for number in range(WRITERS))
        )
        await asyncio.to_thread(platform.restart, "api", signal.SIGKILL)
        await asyncio.to_thread(platform.restart, "api-two", signal.SIGTERM)
        over.set()
        made = sum(await writers)
        await one.projects.update(last.id, title="over")
        async with asyncio.timeout(180):
            everything = await asyncio.gather(*readers)
        for client in clients:
            await client.close()
    expected = await _sequenced(platform)
    assert len(expected) == made + 1 > WRITERS
    for number, seen in enumerate(everything):
        assert seen == expected, f"reader {number} of {len(everything)}"
    revisions = [revision for resource, revision in expected if resource == shared.id]
    assert revisions == sorted(set(revisions))


async def _reader_clients(admin: GpuaasClient, urls: list[str], tenant_id: str) -> list[GpuaasClient]:
    """Several principals, several connections each, half of them to either process."""
    clients = []
    for number in range(USERS):
        user = await admin.users.create(f"reader-{number}@example.com", PASSWORD)
        await admin.memberships.create(user.id, Role.TENANT_ADMIN, tenant_id=tenant_id)
        async with GpuaasClient(urls[0], PasswordCredentials(user.email, PASSWORD), retry=PATIENT) as login:
            token = await login.token()
        clients += [client_of(urls[index % 2], token) for index in range(CLIENTS_PER_USER)]
    return clients


def _other(client: GpuaasClient, clients: list[GpuaasClient]) -> GpuaasClient:
    """The same principal at the other process."""
    index = clients.index(client)
    return clients[index ^ 1]


async def _sequenced(platform: FeedPlatform) -> Seen:
    async with await psycopg.AsyncConnection.connect(platform.database_url) as connection:
        cursor = await connection.execute(
            "SELECT resource_id, revision FROM changes WHERE noun = 'project' AND event = 'updated' ORDER BY position"
        )
        return [(resource, revision) for resource, revision in await cursor.fetchall()]
