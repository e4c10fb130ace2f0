"""The cost of a thousand connected agents for one API process: simulated hosts, the real protocol.

Each agent is enrolled and connects over a WebSocket of its own, says hello, and then beats every ten seconds, as
an agent of a quiet host does. CPU is that of the API process alone, from the kernel's own accounts."""

import asyncio
import os
import random
import sys
import time
from pathlib import Path

import websockets
from tests.support.services import admin_credentials, platform_services
from tests.support.world import SimulatedNode, make_key

from benchmarks.__main__ import without_rate_limit
from gpuaas_contract.agent_link import Heartbeat, Hello
from gpuaas_contract.nodes import Inventory
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_stack.settings import Settings
from gpuaas_stack.supervision import Supervision

AGENTS = int(sys.argv[1]) if __name__ == "__main__" and len(sys.argv) > 1 else 1_000
BEAT_SECONDS = 10
MEASURED_SECONDS = 30


def pid_of_api(settings: Settings) -> int:
    (state,) = [state for state in Supervision(settings.state_dir).states() if state.name == "api"]
    assert state.process is not None
    return state.process.pid


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid: int) -> float:
    (line,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("VmRSS")]
    return int(line.split()[1]) / 1024


async def measure_cpu(pid: int) -> float:
    """Of one core, as a part of one."""
    cpu, started = cpu_seconds(pid), time.perf_counter()
    await asyncio.sleep(MEASURED_SECONDS)
    return (cpu_seconds(pid) - cpu) / (time.perf_counter() - started)


async def enrol(client: GpuaasClient, number: int, places: asyncio.Semaphore) -> SimulatedNode:
    private, public = make_key()
    async with places:
        token = await client.join_tokens.create(f"host-{number + 1}")
        enrolment = await client.nodes.enrol(token.token, public)
    return SimulatedNode(enrolment.node_id, private, client.api_url)


async def stay_connected(node: SimulatedNode, places: asyncio.Semaphore, connected: asyncio.Queue[str]) -> None:
    url = node.api_url.replace("http", "ws", 1) + "/v1/agent/link"
    inventory = Inventory(capacity=node.capacity, virtualisation="simulated")
    hello = Hello(agent_version="0", inventory=inventory, slices=None)
    async with places:
        link = await websockets.connect(url, additional_headers={"Authorization": f"Bearer {node.token()}"})
        await link.send(hello.model_dump_json())
    connected.put_nowait(node.node_id)
    await asyncio.sleep(random.uniform(0, BEAT_SECONDS))  # noqa: S311 - they do not beat in step
    while True:
        await link.send(Heartbeat().model_dump_json())
        await asyncio.sleep(BEAT_SECONDS)


async def run(settings: Settings) -> None:
    without_rate_limit(settings)
    pid = pid_of_api(settings)
    places = asyncio.Semaphore(16)
    async with GpuaasClient(settings.api_url, PasswordCredentials(*admin_credentials(settings))) as client:
        nodes = await asyncio.gather(*(enrol(client, number, places) for number in range(AGENTS)))
        idle_cpu, idle_memory = await measure_cpu(pid), resident_mib(pid)
        connected: asyncio.Queue[str] = asyncio.Queue()
        started = time.perf_counter()
        links = [asyncio.create_task(stay_connected(node, places, connected)) for node in nodes]
        for _ in nodes:
            await connected.get()
        took = time.perf_counter() - started
        cpu, memory = await measure_cpu(pid), resident_mib(pid)
        lost = [node.name async for node in client.nodes.list(limit=200) if node.status != "ready"]
    for link in links:
        link.cancel()
    await asyncio.gather(*links, return_exceptions=True)
    print(f"{AGENTS} agents, a heart-beat every {BEAT_SECONDS} s, connected in {took:.1f} s, {len(lost)} lost")
    print(f"{'':20}{'no agent':>12}{f'{AGENTS} agents':>14}{'per agent':>14}")
    print(f"{'CPU, % of a core':20}{idle_cpu * 100:12.1f}{cpu * 100:14.1f}{(cpu - idle_cpu) / AGENTS * 100:14.4f}")
    print(f"{'memory, MiB':20}{idle_memory:12.0f}{memory:14.0f}{(memory - idle_memory) / AGENTS:14.3f}")


if __name__ == "__main__":
    with platform_services("agents") as chosen:
        asyncio.run(run(chosen))
