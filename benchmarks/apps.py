"""`make bench-apps`: how soon a controller has what was asked for, and what members and steps cost.

- An operation is requested, and claimed by a waiting controller of the SDK: with one instance, and with idle ones.
- Steps reported, against a bare handler that writes the same rows in one transaction on the same server, in turns; and
  the same for operations that have many steps already.
- The members of an instance, read in pages, against the bare rows.
- One deploy request with many members, against one with few.

Printed, never asserted. `python -m benchmarks.apps 1000` says with how many idle instances."""

import asyncio
import itertools
import json
import os
import secrets
import statistics
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import psycopg
from tests.support.database import database_url
from tests.support.services import admin_credentials, platform_services
from tests.support.world import MANIFEST, World

from benchmarks.__main__ import Side, bare_server, in_turns, wait_until_quiet, without_rate_limit
from benchmarks.client import post
from gpuaas_contract.instances import InstanceDeploy, Placement
from gpuaas_contract.manifest import Manifest
from gpuaas_contract.operations import StepStatus
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_sdk.runtime.context import OperationContext
from gpuaas_sdk.runtime.controller import Controller
from gpuaas_stack.settings import Settings

IDLE = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000
REQUESTS = 150
MEMBERS = 10_000
DEPLOYED = 500
OPERATIONS = 32
"""That steps are reported for at once: one operation's steps come one after the other."""
STEPS_BEFORE = 100
"""Of a long operation, each with a kilobyte of evidence."""
MANIFEST_OF_BENCH = {
    **MANIFEST,
    "components": [
        {"key": "head", "title": "Head", "primary": True, "may_share_machine_with": ["tail"]},
        {"key": "tail", "title": "Tail", "min": 0, "max": 20_000, "may_share_machine_with": ["head"]},
    ],
    "operations": [*MANIFEST["operations"], {"kind": "ping", "title": "Ping"}],
    "version": "2.0.0",
}
_COLUMNS = """SELECT string_agg(quote_ident(column_name), ', ') FROM information_schema.columns
              WHERE table_name = %s AND is_generated = 'NEVER' AND is_identity = 'NO'"""


def copy_rows(database: psycopg.Connection, table: str, id: str, count: int, changes: str) -> None:
    """Rows like one that the platform made, with other ids: `changes` is a JSON object in SQL, of the number n."""
    row = database.execute(_COLUMNS, [table]).fetchone()
    assert row is not None
    statement = f"""INSERT INTO {table} ({row[0]}) SELECT {row[0]} FROM (
        SELECT (jsonb_populate_record(t, {changes})).* FROM {table} t, generate_series(1, %s) n WHERE t.id = %s) made"""  # noqa: S608
    database.execute(statement.encode(), [count, id])


def percentile(samples: list[float], share: float) -> float:
    return sorted(samples)[min(len(samples) - 1, int(len(samples) * share))] * 1000


@asynccontextmanager
async def waiting_controller(world: World, claimed: dict[str, float]) -> AsyncIterator[None]:
    async def ping(context: OperationContext) -> None:
        claimed[context.operation_id] = time.perf_counter()

    controller = Controller(world.controller, {"ping": ping}, machines=lambda client, claim: NoMachines())
    running = asyncio.create_task(controller.run())
    try:
        yield
    finally:
        controller.stop()
        await running


class NoMachines:
    async def prepare(self) -> None:
        pass

    def machine(self, allocation_id: str) -> Any:
        raise LookupError(allocation_id)

    async def close(self) -> None:
        pass


async def intent_to_claim(world: World, instance_id: str, database: psycopg.Connection) -> list[float]:
    """From the moment before the request is sent to the first line of the handler; one at a time."""
    claimed: dict[str, float] = {}
    samples: list[float] = []
    async with waiting_controller(world, claimed):
        for number in range(REQUESTS + 10):
            began = time.perf_counter()
            operation = await world.admin.instances.request(instance_id, "ping")
            async with asyncio.timeout(30):
                while (await world.admin.operations.get(operation.id)).state != "succeeded":  # noqa: ASYNC110
                    await asyncio.sleep(0.02)
            if number >= 10:
                samples.append(claimed[operation.id] - began)
    return samples


async def claims(world: World, instance_id: str, database: psycopg.Connection) -> None:
    first = await intent_to_claim(world, instance_id, database)
    show_claims("requested to claimed, 1 instance", first)
    make_idle(database, instance_id, IDLE)
    wait_until_quiet(database)
    again = await intent_to_claim(world, instance_id, database)
    show_claims(f"requested to claimed, {IDLE:,} idle ones beside it", again)
    print(f"  with idle ones by without: p50 {ratio(again, first, 0.5):.2f}, p99 {ratio(again, first, 0.99):.2f}")


def ratio(one: list[float], other: list[float], share: float) -> float:
    return percentile(one, share) / percentile(other, share)


def show_claims(name: str, samples: list[float]) -> None:
    p50, p99 = percentile(samples, 0.5), percentile(samples, 0.99)
    print(f"  {name:<50} p50 {p50:7.1f} ms   p99 {p99:7.1f} ms   (goal: p99 under 100)", flush=True)


def make_idle(database: psycopg.Connection, instance_id: str, count: int) -> None:
    """Instances with a member each and a deploy that is done, as the first one has."""
    copy_rows(
        database,
        "instances",
        instance_id,
        count,
        "jsonb_build_object('id', 'ins_' || lpad(to_hex(n), 26, '0'), 'name', 'idle-' || n)",
    )
    for table, prefix in (("members", "mem"), ("operations", "op")):
        row = database.execute(
            f"SELECT id FROM {table} WHERE instance_id = %s ORDER BY id LIMIT 1".encode(),  # noqa: S608
            [instance_id],
        ).fetchone()
        assert row is not None
        parts = f"""jsonb_build_object('id', '{prefix}_' || lpad(to_hex(n), 26, '0'),
                    'instance_id', 'ins_' || lpad(to_hex(n), 26, '0')"""
        parts += ")" if table == "members" else ", 'member_id', 'mem_' || lpad(to_hex(n), 26, '0'))"
        copy_rows(database, table, row[0], count, parts)
    database.execute("VACUUM ANALYZE")


async def steps(world: World, settings: Settings, instance_id: str, bare: int, database: psycopg.Connection) -> None:
    """Each of many operations is worked on; the steps are theirs in turns."""
    members = database.execute(
        "SELECT id FROM members WHERE instance_id LIKE 'ins_000%%' ORDER BY id LIMIT %s", [OPERATIONS]
    ).fetchall()
    held = []
    for (member_id,) in members:
        instance = f"ins_{member_id[4:]}"
        operation = await world.admin.instances.request(instance, "ping")
        claim = await world.controller.operations.claim(operation.id, "bench")
        held.append((operation.id, claim.fencing_token))

    async def keep() -> None:
        while True:
            for id, token in held:
                await world.controller.operations.heartbeat(id, token)
            await asyncio.sleep(3)

    token = (await world.controller.fetch_token()).access_token
    keys = itertools.count()
    long, short = held[: OPERATIONS // 2], held[OPERATIONS // 2 :]
    database.execute(
        """INSERT INTO operation_steps (operation_id, attempt, key, title, status, evidence, ended_at)
           SELECT id, 1, 'before-' || n, 'Before', 'succeeded', jsonb_build_object('said', repeat('x', 1000)), now()
           FROM unnest(%s::text[]) id, generate_series(1, %s) n""",
        [[id for id, _ in long], STEPS_BEFORE],
    )
    of_short, of_long, of_bare = itertools.cycle(short), itertools.cycle(long), itertools.cycle(short)

    def report(path: str, bearer: str | None, turns: Iterator[tuple[str, int]]) -> bytes:
        id, fencing_token = next(turns)
        body = {"fencing_token": fencing_token, "key": "step", "title": "A step", "status": "running", "evidence": {}}
        key = f"step-{next(keys)}" if bearer else None
        return post(path.format(id=id), bearer, json.dumps(body).encode(), key)

    beating = asyncio.create_task(keep())
    try:
        route = "/v1/operations/{id}/steps"
        ours = Side(settings.api_port, lambda: report(route, token, of_short))
        floor = Side(bare, lambda: report("/operations/{id}/steps", None, of_bare))
        late = Side(settings.api_port, lambda: report(route, token, of_long))
        platform, baseline, after_many = await in_turns((ours, floor, late))
    finally:
        beating.cancel()
    found = statistics.median(one.rate / two.rate for one, two in zip(platform, baseline, strict=True))
    own, other = (sorted(side, key=lambda m: m.rate)[len(side) // 2] for side in (platform, baseline))
    print(
        f"  steps reported a second: {own.rate:.0f}, bare {other.rate:.0f}, ratio {found:.2f}   "
        f"p50/p99 ms {own.p50_ms:.1f}/{own.p99_ms:.1f}, bare {other.p50_ms:.1f}/{other.p99_ms:.1f}",
        flush=True,
    )
    slower = statistics.median(one.rate / two.rate for one, two in zip(after_many, platform, strict=True))
    print(f"  … with {STEPS_BEFORE} steps before: {slower:.2f} of the rate with none", flush=True)
    for id, fencing_token in held:
        await world.controller.operations.report_step(
            id, fencing_token, key="step", title="A step", status=StepStatus.SUCCEEDED
        )
        await world.controller.operations.complete(id, fencing_token)


async def pages(world: World, instance_id: str, database: psycopg.Connection) -> None:
    row = database.execute("SELECT id FROM members WHERE instance_id = %s LIMIT 1", [instance_id]).fetchone()
    assert row is not None
    changes = "jsonb_build_object('id', 'mem_' || lpad(to_hex(n + 16777216), 26, '0'), 'component_key', 'tail')"
    copy_rows(database, "members", row[0], MEMBERS - 1, changes)
    database.execute("VACUUM ANALYZE members")
    for size in (100, 500):
        times: list[float] = []
        pager = world.admin.instances.members(instance_id, limit=size)
        count, began = 0, time.perf_counter()
        last = began
        async for _ in pager:
            count += 1
            if count % size == 0:
                now = time.perf_counter()
                times.append(now - last)
                last = now
        took = time.perf_counter() - began
        began = time.perf_counter()
        rows = database.execute("SELECT * FROM members WHERE instance_id = %s ORDER BY id", [instance_id]).fetchall()
        bare = time.perf_counter() - began
        first, end = statistics.median(times[:5]) * 1000, statistics.median(times[-5:]) * 1000
        print(
            f"  {count:,} members in pages of {size}: {took:.2f} s, {took / bare:.0f} times {len(rows):,} bare rows; "
            f"a page {first:.0f} ms at the beginning, {end:.0f} ms at the end",
            flush=True,
        )
    database.execute("DELETE FROM members WHERE instance_id = %s AND id <> %s", [instance_id, row[0]])


async def deploys(world: World, allocation_id: str, database: psycopg.Connection) -> None:
    """The request alone: what its controller does is another matter."""
    changes = """jsonb_build_object('id', 'alc_' || lpad(to_hex(n), 26, '0'), 'name', 'm' || n, 'hostname', 'm' || n,
                                    'address', '192.0.2.' || n || 'x')"""
    copy_rows(database, "allocations", allocation_id, DEPLOYED, changes)
    database.execute("VACUUM ANALYZE")
    times: dict[int, list[float]] = {}
    for size in (10, DEPLOYED) * 3:
        machines = [f"alc_{number:026x}" for number in range(1, size + 1)]
        placement = [Placement(component_key="head", allocation_id=machines[0])]
        placement += [Placement(component_key="tail", allocation_id=machine) for machine in machines[1:]]
        name = f"d{secrets.token_hex(4)}"
        request = InstanceDeploy(
            project_id=world.project.id, app_slug=world.app_slug, name=name, placement_intent=placement
        )
        began = time.perf_counter()
        instance = await world.admin.instances.deploy(request)
        times.setdefault(size, []).append(time.perf_counter() - began)
        database.execute("UPDATE members SET status = 'removed' WHERE instance_id = %s", [instance.id])
        database.execute("UPDATE operations SET state = 'cancelled' WHERE instance_id = %s", [instance.id])
        wait_until_quiet(database)
    few, many = statistics.median(times[10]), statistics.median(times[DEPLOYED])
    print(
        f"  deploy request with 10 members {few * 1000:.0f} ms, with {DEPLOYED} members {many * 1000:.0f} ms: "
        f"{many / few:.1f} times, {many / DEPLOYED * 1000:.2f} ms for each member",
        flush=True,
    )


async def run(settings: Settings) -> None:
    without_rate_limit(settings)
    url = database_url(settings)
    credentials = PasswordCredentials(*admin_credentials(settings))
    with psycopg.connect(url, autocommit=True) as database, bare_server(url) as bare:
        async with GpuaasClient(settings.api_url, credentials) as admin, World.create(admin, "bench") as world:
            manifest = Manifest.model_validate({**MANIFEST_OF_BENCH, "slug": world.app_slug})
            await admin.app_versions.publish(manifest)
            head = await world.allocation("head")
            instance = await world.deploy(head=head)
            (operation_id,) = await world.claimable()
            claim = await world.controller.operations.claim(operation_id, "bench")
            await world.controller.operations.complete(operation_id, claim.fencing_token)
            await deploys(world, head.id, database)
            await claims(world, instance.id, database)
            await steps(world, settings, instance.id, bare, database)
            await pages(world, instance.id, database)


if __name__ == "__main__":
    print(f"load of the machine at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with platform_services("apps") as chosen:
        asyncio.run(run(chosen))
