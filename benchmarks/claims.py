"""Claims of machines a second, against a bare handler on the same server that writes the same rows in one transaction.

The nodes are simulated and connected, and take the tasks without finishing them. `python -m benchmarks.claims 1 1000`
says with how many nodes; the bare side knows the node that it wants and never looks for one."""

import asyncio
import itertools
import json
import secrets
import statistics
import sys

from tests.support.database import database_url
from tests.support.services import admin_credentials, platform_services
from tests.support.world import SimulatedNode

from benchmarks.__main__ import Side, bare_server, in_turns, without_rate_limit
from benchmarks.agents import enrol
from benchmarks.client import post
from gpuaas_contract.nodes import Capacity
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_stack.settings import Settings

FLEETS = tuple(int(size) for size in sys.argv[1:]) or (1, 100)
PROJECTS = 60
GOAL = 0.5
SHAPE = {"cpus": 1, "memory_mib": 256, "disk_gib": 2}
ROOM = Capacity(cpus=100_000, memory_mib=100_000_000, disk_gib=1_000_000, gpus=0)


async def connect(nodes: list[SimulatedNode], client: GpuaasClient) -> list[asyncio.Task[None]]:
    for node in nodes:
        node.capacity, node.holds = ROOM, {"create_slice"}
    links = [asyncio.create_task(node.run()) for node in nodes]
    while not all([node.status == "ready" async for node in client.nodes.list(limit=200)]):
        await asyncio.sleep(0.2)  # noqa: ASYNC110 - it is another process that makes them ready
    return links


async def run(settings: Settings) -> None:
    without_rate_limit(settings)
    names = (f"c{secrets.token_hex(3)}{number}" for number in itertools.count())
    print(f"{'claims of a machine':26}{'nodes':>8} {'API/s':>8} {'bare/s':>8} {'ratio':>6} {'goal':>5}   p50/p99 ms")
    async with GpuaasClient(settings.api_url, PasswordCredentials(*admin_credentials(settings))) as client:
        tenant = await client.tenants.create("bench")
        projects = [await client.projects.create(tenant.id, f"p{number}") for number in range(PROJECTS)]
        turns = itertools.cycle(project.id for project in projects)
        token = (await client.fetch_token()).access_token
        nodes: list[SimulatedNode] = []
        links: list[asyncio.Task[None]] = []
        with bare_server(database_url(settings)) as bare:
            for fleet in FLEETS:
                places = asyncio.Semaphore(16)
                new = [enrol(client, number, places) for number in range(len(nodes), fleet)]
                nodes += await asyncio.gather(*new)
                links += await connect(nodes[len(links) :], client)
                node_id = nodes[0].node_id

                def request(path: str, token: str | None, **more: str) -> bytes:
                    name = next(names)
                    body = {"project_id": next(turns), "name": name, "shape": SHAPE, **more}
                    return post(path, token, json.dumps(body).encode(), f"key-{name}" if token else None)

                ours = Side(settings.api_port, lambda: request("/v1/allocations", token))
                floor = Side(bare, lambda id=node_id: request("/claims", None, node_id=id))  # type: ignore[misc]
                platform, baseline = await in_turns((ours, floor))
                ratio = statistics.median(one.rate / two.rate for one, two in zip(platform, baseline, strict=True))
                own, other = platform[1], baseline[1]
                rates = f"{own.rate:8.0f} {other.rate:8.0f} {ratio:6.2f} {GOAL:>5}"
                print(f"{'':26}{fleet:8,} {rates}   {own.p50_ms:.1f}/{own.p99_ms:.1f}, {other.p50_ms:.1f}", flush=True)
    for link in links:
        link.cancel()
    await asyncio.gather(*links, return_exceptions=True)


if __name__ == "__main__":
    with platform_services("claims") as chosen:
        asyncio.run(run(chosen))
