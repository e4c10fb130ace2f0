"""Claims of machines a second, against a bare handler on the same server that writes the same rows in one transaction.

The nodes are simulated and connected, and beat, but never finish a task. `python -m benchmarks.claims 50 500`
says with how many nodes; the bare side knows the node that it wants and never looks for one. Ratios are printed, never
asserted."""

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
from benchmarks.agents import enrol, stay_connected
from benchmarks.client import post
from gpuaas_contract.nodes import Capacity
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_stack.settings import Settings

FLEETS = tuple(int(size) for size in sys.argv[1:]) or (50, 500, 5_000)
PROJECTS = 60
GOAL = 0.6
SHAPE = {"cpus": 1, "memory_mib": 256, "disk_gib": 2}
MACHINES_PER_NODE = 50
ROOM = Capacity(cpus=MACHINES_PER_NODE, memory_mib=MACHINES_PER_NODE * 256, disk_gib=MACHINES_PER_NODE * 2, gpus=0)


async def connect(nodes: list[SimulatedNode]) -> list[asyncio.Task[None]]:
    connected: asyncio.Queue[str] = asyncio.Queue()
    places = asyncio.Semaphore(16)
    for node in nodes:
        node.capacity = ROOM
    links = [asyncio.create_task(stay_connected(node, places, connected)) for node in nodes]
    for _ in nodes:
        await connected.get()
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
        # The rows of the bare side lie on a node that never connects, and so do not fill those of the platform.
        apart = await enrol(client, -1, asyncio.Semaphore(1))
        ratios: list[float] = []
        with bare_server(database_url(settings)) as bare:
            for fleet in FLEETS:
                places = asyncio.Semaphore(16)
                new = [enrol(client, number, places) for number in range(len(nodes), fleet)]
                nodes += await asyncio.gather(*new)
                links += await connect(nodes[len(links) :])

                def request(path: str, token: str | None, **more: str) -> bytes:
                    name = next(names)
                    body = {"project_id": next(turns), "name": name, "shape": SHAPE, **more}
                    return post(path, token, json.dumps(body).encode(), f"key-{name}" if token else None)

                ours = Side(settings.api_port, lambda: request("/v1/allocations", token))
                floor = Side(bare, lambda: request("/claims", None, node_id=apart.node_id))
                platform, baseline = await in_turns((ours, floor))
                ratio = statistics.median(one.rate / two.rate for one, two in zip(platform, baseline, strict=True))
                ratios.append(ratio)
                own, other = platform[1], baseline[1]
                rates = f"{own.rate:8.0f} {other.rate:8.0f} {ratio:6.2f} {GOAL:>5}"
                print(f"{'':26}{fleet:8,} {rates}   {own.p50_ms:.1f}/{own.p99_ms:.1f}, {other.p50_ms:.1f}", flush=True)
        print(f"ratio at {FLEETS[-1]:,} nodes by that at {FLEETS[0]:,}: {ratios[-1] / ratios[0]:.2f} (goal: 0.9)")
    for link in links:
        link.cancel()
    await asyncio.gather(*links, return_exceptions=True)


if __name__ == "__main__":
    with platform_services("claims") as chosen:
        asyncio.run(run(chosen))
