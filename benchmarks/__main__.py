"""`make bench`: the API against a bare handler that does the same in the database, on the same machine, in turns."""

import asyncio
import base64
import itertools
import json
import secrets
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import httpx
import psycopg
from tests.support.ports import free_port
from tests.support.services import admin_credentials, platform_services

from benchmarks.client import Measured, get, measure, post
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_stack.postgres import Postgres
from gpuaas_stack.service import Service
from gpuaas_stack.settings import Settings
from gpuaas_stack.supervision import Supervision

SIZES = tuple(int(size) for size in sys.argv[1:]) or (1_000, 100_000)
ROUNDS = 3
SECONDS = 3.0
READ, LOOK, CREATE = "read a project", "… without the caller", "create a service account"
GOALS = {READ: 0.6, CREATE: 0.5}
COMPARED = f"""\
API:  the platform as it is served, with one user's token; nothing is switched off but the rate limit.
bare: benchmarks/bare.py, the same server, framework and driver with the same statements and nothing around them.

{READ}: GET /v1/projects/ID. Both run the same two statements: who calls (user, login and roles), and the project.
{LOOK}: the same request of the API; bare runs the project's statement only.
{CREATE}: POST /v1/service-accounts with an idempotency key. Bare writes the same rows in one
  transaction (resource, change, audit entry, idempotency answer), and reads none of what the API has to look at first.

8 clients each, API and bare in turns, {ROUNDS} rounds of {SECONDS:.0f} s. Ratio: median over the rounds.
"""


@dataclass(frozen=True)
class Side:
    port: int
    request: Callable[[], bytes]


def without_rate_limit(settings: Settings) -> None:
    """One principal may not ask this often otherwise. Nothing else of the platform is changed."""
    supervision = Supervision(settings.state_dir)
    service = Service.from_json((supervision.services_dir / "api.json").read_text())
    supervision.ensure_service(replace(service, env={**service.env, "GPUAAS_REQUESTS_PER_SECOND": "1000000"}))
    supervision.wait_ready("api")


@contextmanager
def bare_server(database_url: str) -> Iterator[int]:
    port = free_port()
    server = subprocess.Popen([sys.executable, "-m", "benchmarks.bare", str(port), database_url])
    try:
        deadline = time.monotonic() + 20
        while True:
            try:
                httpx.get(f"http://127.0.0.1:{port}/").close()
                break
            except httpx.TransportError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        yield port
    finally:
        server.terminate()
        server.wait()


_FILL = {
    "projects": """INSERT INTO projects (id, tenant_id, name, title)
        SELECT 'prj_' || lpad(to_hex(n), 26, '0'), %(tenant)s, 'p' || n, 'p'""",
    "service_accounts": """INSERT INTO service_accounts (id, project_id, name)
        SELECT 'sva_' || lpad(to_hex(n), 26, '0'), %(project)s, 'f' || n""",
    "changes": """INSERT INTO changes (noun, resource_id, event, message, revision, project_id, correlation_id)
        SELECT 'project', 'prj_' || n, 'created', '', 1, %(project)s, 'fill'""",
    "audit_entries": """INSERT INTO audit_entries (id, chain, principal_id, action, target, project_id,
                                                   correlation_id)
        SELECT 'aud_' || lpad(to_hex(n), 26, '0'), %(tenant)s, 'fill', 'fill', 'fill', %(project)s, 'fill'""",
    "idempotency_keys": """INSERT INTO idempotency_keys (principal_id, key, fingerprint, status, body)
        SELECT 'fill', n::text, '', 201, ''""",
}


def fill(database: psycopg.Connection, tenant_id: str, project_id: str, size: int) -> None:
    """Bring the tables that the measured requests touch to this many rows."""
    for table, statement in _FILL.items():
        row = database.execute(f"SELECT count(*) FROM {table}".encode()).fetchone()  # noqa: S608 - our own names
        assert row is not None
        if row[0] < size:
            first = 10_000_000 + row[0]
            values = {"tenant": tenant_id, "project": project_id, "first": first, "last": first + size - row[0] - 1}
            database.execute(f"{statement} FROM generate_series(%(first)s, %(last)s) n".encode(), values)
    database.execute("VACUUM ANALYZE")
    wait_until_quiet(database)


def wait_until_quiet(database: psycopg.Connection) -> None:
    """The loops must have caught up: their work on what was filled in is not what is measured."""
    deadline = time.monotonic() + 300
    while True:
        row = database.execute(
            """SELECT (SELECT count(*) FROM changes WHERE position IS NULL)
                    + (SELECT count(*) FROM audit_entries WHERE position IS NULL)"""
        ).fetchone()
        if row == (0,):
            return
        if time.monotonic() > deadline:
            raise RuntimeError(f"{row} rows still wait for their place")
        time.sleep(0.2)


def sides(platform: int, bare: int, token: str, project_id: str) -> dict[str, tuple[Side, Side]]:
    names = (f"b{secrets.token_hex(3)}{number}" for number in itertools.count())

    def creation() -> tuple[bytes, str]:
        name = next(names)
        return json.dumps({"project_id": project_id, "name": name}).encode(), name

    def create_on_platform() -> bytes:
        body, name = creation()
        return post("/v1/service-accounts", token, body, f"key-{name}")

    def create_bare() -> bytes:
        return post("/service-accounts", None, creation()[0], None)

    payload = token.split(".")[1]
    claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
    same = get(f"/projects/{project_id}?user={claims['sub']}&session={claims['sid']}", None)
    one, read = get(f"/projects/{project_id}", None), get(f"/v1/projects/{project_id}", token)
    return {
        # The same two statements: who calls, and the project. Then, to see what the first costs, without it.
        READ: (Side(platform, lambda: read), Side(bare, lambda: same)),
        LOOK: (Side(platform, lambda: read), Side(bare, lambda: one)),
        CREATE: (Side(platform, create_on_platform), Side(bare, create_bare)),
    }


async def in_turns(sides: Sequence[Side]) -> list[list[Measured]]:
    results: list[list[Measured]] = [[] for _ in sides]
    for side in sides:
        await measure(side.port, side.request, 1.0)
    for _ in range(ROUNDS):
        for side, found in zip(sides, results, strict=True):
            found.append(await measure(side.port, side.request, SECONDS))
    return results


async def run(settings: Settings) -> None:
    without_rate_limit(settings)
    url = Postgres(settings.state_dir / "postgres", settings.postgres_port).database_url()
    credentials = PasswordCredentials(*admin_credentials(settings))
    async with GpuaasClient(settings.api_url, credentials) as admin:
        tenant = await admin.tenants.create("bench")
        project = await admin.projects.create(tenant.id, "bench")
        token = (await admin.fetch_token()).access_token
    print(COMPARED)
    print(f"{'':26}{'rows':>8} {'API/s':>8} {'bare/s':>8} {'ratio':>6} {'goal':>5}   p50/p99 ms: API, bare")
    ratios: dict[str, list[float]] = {}
    with psycopg.connect(url, autocommit=True) as database, bare_server(url) as bare:
        for size in SIZES:
            fill(database, tenant.id, project.id, size)
            for name, pair in sides(settings.api_port, bare, token, project.id).items():
                platform, baseline = await in_turns(pair)
                ratios.setdefault(name, []).append(report(name, size, platform, baseline))
                wait_until_quiet(database)
    for name, found in ratios.items():
        # By the ratios and not the rates: the machine and the database itself may have changed in between.
        change = found[-1] / found[0]
        print(f"{name}: ratio at {SIZES[-1]:,} rows by that at {SIZES[0]:,}: {change:.2f} (goal: flat, 1.0)")


def report(name: str, size: int, platform: list[Measured], baseline: list[Measured]) -> float:
    ratio = statistics.median(one.rate / other.rate for one, other in zip(platform, baseline, strict=True))
    own, other = (sorted(found, key=lambda measured: measured.rate)[len(found) // 2] for found in (platform, baseline))
    latency = f"{own.p50_ms:.1f}/{own.p99_ms:.1f}, {other.p50_ms:.1f}/{other.p99_ms:.1f}"
    rates = f"{own.rate:8.0f} {other.rate:8.0f} {ratio:6.2f} {GOALS.get(name, ''):>5}"
    print(f"{name:26}{size:8,} {rates}   {latency}", flush=True)
    return ratio


if __name__ == "__main__":
    with platform_services("bench") as chosen:
        asyncio.run(run(chosen))
