"""`make bench-runtime`: one controller process that holds 10,000 members of 100 instances in which nothing happens.

The SDK's runtime against polling in the manner of kopf's timers, where every member is asked for by itself; both look
at every member once in 30 seconds (see benchmarks/controllers.py). Measured one after the other on the same platform
and PostgreSQL: the CPU that a round of looks takes in the controller and in the API, the memory of the controller, and
the time from a request for an operation on one member to the controller's first line for it. Looking at the machines,
which is the app's own work and costs both the same, is left out. Printed, never asserted."""

import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psycopg
from tests.support.database import database_url
from tests.support.services import admin_credentials, platform_services
from tests.support.world import World, make_key

from benchmarks.__main__ import wait_until_quiet, without_rate_limit
from benchmarks.agents import cpu_seconds, pid_of_api, resident_mib
from benchmarks.apps import MANIFEST_OF_BENCH, copy_rows, make_idle, percentile
from benchmarks.controllers import POKE
from gpuaas_contract.manifest import Manifest
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_stack.settings import Settings

INSTANCES = 100
MEMBERS = 10_000
LOOK_SECONDS = 30
MEASURED_SECONDS = 2 * LOOK_SECONDS
"""After as long for the start, in which leases are taken: on a busy machine, polling never gets around in time."""
CHANGES = 60
MANIFEST = {
    **MANIFEST_OF_BENCH,
    "operations": [*MANIFEST_OF_BENCH["operations"], {"kind": POKE, "title": "Poke", "component": "tail"}],
    "version": "3.0.0",
}


@dataclass
class Watched:
    """A controller in a process of its own, and what it has said."""

    process: asyncio.subprocess.Process
    looked: int = 0
    failed: int = 0
    seen: dict[str, float] = field(default_factory=dict)

    async def listen(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            said = json.loads(line)
            self.looked += said.get("looked", 0)
            self.failed += "failed" in said
            if "seen" in said:
                self.seen[said["seen"]] = said["at"]

    async def until_seen(self, operation_id: str) -> float:
        while operation_id not in self.seen:  # noqa: ASYNC110 - looks at what another task noted
            await asyncio.sleep(0.005)
        return self.seen[operation_id]


@dataclass(frozen=True)
class Measured:
    seconds: float
    """Between two looks at the same member."""
    cpu: float
    api_cpu: float
    """Both in CPU seconds for a look at every member."""
    memory: float
    reactions: list[float]


@asynccontextmanager
async def controller(name: str, account: Path) -> AsyncIterator[Watched]:
    words = ["-m", "benchmarks.controllers", name, str(account), str(LOOK_SECONDS)]
    process = await asyncio.create_subprocess_exec(sys.executable, *words, stdout=asyncio.subprocess.PIPE)
    watched = Watched(process)
    listening = asyncio.create_task(watched.listen())
    try:
        yield watched
    finally:
        process.terminate()
        await process.wait()
        await listening


async def measure(name: str, account: Path, world: World, members: list[tuple[str, str]], api: int) -> Measured:
    async with controller(name, account) as watched:
        await asyncio.sleep(MEASURED_SECONDS)
        looked, pid = watched.looked, watched.process.pid
        began, cpu, api_cpu = time.monotonic(), cpu_seconds(pid), cpu_seconds(api)
        await asyncio.sleep(MEASURED_SECONDS)
        took, cpu, api_cpu = time.monotonic() - began, cpu_seconds(pid) - cpu, cpu_seconds(api) - api_cpu
        if watched.process.returncode is not None:
            raise RuntimeError(f"the controller ended with {watched.process.returncode}")
        share = MEMBERS / (watched.looked - looked)
        memory = resident_mib(pid)
        reactions = await react(name, watched, world, members)
        print(f"  {name}: {watched.looked:,} members looked at, {watched.failed} requests failed", flush=True)
    return Measured(took * share, cpu * share, api_cpu * share, memory, reactions)


async def react(name: str, watched: Watched, world: World, members: list[tuple[str, str]]) -> list[float]:
    """One after the other to the runtime; all at once to the polling one, which takes long to see each."""

    async def one(instance_id: str, member_id: str) -> float:
        began = time.monotonic()
        operation = await world.admin.instances.request(instance_id, POKE, member_id=member_id)
        return await watched.until_seen(operation.id) - began

    if name == "runtime":
        return [await one(*member) for member in members]
    return await asyncio.gather(*(one(*member) for member in members))


def make_members(database: psycopg.Connection, instance_id: str) -> list[tuple[str, str]]:
    """Instances with as many members each; instance and member of some that changes are asked for on."""
    make_idle(database, instance_id, INSTANCES)
    (head,) = database.execute("SELECT id FROM members WHERE instance_id = %s", [instance_id]).fetchall()
    each = MEMBERS // INSTANCES - 1
    changes = f"""jsonb_build_object('id', 'mem_' || lpad(to_hex(n + 16777216), 26, '0'), 'component_key', 'tail',
                  'status', 'ready', 'instance_id', 'ins_' || lpad(to_hex((n - 1) / {each} + 1), 26, '0'))"""
    copy_rows(database, "members", head[0], INSTANCES * each, changes)
    database.execute("VACUUM ANALYZE")
    wait_until_quiet(database)
    # Of instances of their own: each is one change in an instance in which nothing else happens.
    chosen = random.Random(8).sample(range(1, INSTANCES + 1), min(CHANGES, INSTANCES))  # noqa: S311
    return [(f"ins_{number:026x}", f"mem_{(number - 1) * each + 1 + 16777216:026x}") for number in chosen]


async def write_account(world: World, directory: Path) -> Path:
    private, public = make_key()
    made = await world.admin.service_accounts.create(world.project.id, "bench", public, app_slug=world.app_slug)
    path = directory / "account.json"
    content = {"service_account_id": made.id, "private_key_pem": private, "api_url": world.admin.api_url}
    path.write_text(json.dumps(content))
    path.chmod(0o600)
    return path


async def run(settings: Settings, directory: Path) -> None:
    without_rate_limit(settings)
    credentials = PasswordCredentials(*admin_credentials(settings))
    with psycopg.connect(database_url(settings), autocommit=True) as database:
        async with GpuaasClient(settings.api_url, credentials) as admin, World.create(admin, "runtime") as world:
            await admin.app_versions.publish(Manifest.model_validate({**MANIFEST, "slug": world.app_slug}))
            instance = await world.deploy(head=await world.allocation("head"))
            (operation_id,) = await world.claimable()
            claim = await world.controller.operations.claim(operation_id, "bench")
            await world.controller.operations.complete(operation_id, claim.fencing_token)
            members = make_members(database, instance.id)
            account, api = await write_account(world, directory), pid_of_api(settings)
            ours = await measure("runtime", account, world, members, api)
            polling = await measure("polling", account, world, members, api)
    report(ours, polling)


def report(ours: Measured, polling: Measured) -> None:
    print(f"\n{MEMBERS:,} members of {INSTANCES} instances, a look at each every {LOOK_SECONDS} s, nothing to change")
    print(f"{'':44}{'runtime':>10}{'polling':>10}{'times':>8}")
    rows = {
        "controller CPU for a look at all, s": (ours.cpu, polling.cpu),
        "the same for one member, ms": (ours.cpu / MEMBERS * 1000, polling.cpu / MEMBERS * 1000),
        "CPU of the API for it, s": (ours.api_cpu, polling.api_cpu),
        "memory of the controller, MiB": (ours.memory, polling.memory),
        "from one change to its handler, p50 ms": tuple(percentile(m.reactions, 0.5) for m in (ours, polling)),
        "from one change to its handler, p99 ms": tuple(percentile(m.reactions, 0.99) for m in (ours, polling)),
        "between two looks at a member, s": (ours.seconds, polling.seconds),
    }
    for name, (own, other) in rows.items():
        print(f"{name:44}{own:10.2f}{other:10.2f}{other / own:8.1f}")


if __name__ == "__main__":
    print(f"load of the machine at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with platform_services("runtime") as chosen, tempfile.TemporaryDirectory() as scratch:
        asyncio.run(run(chosen, Path(scratch)))
