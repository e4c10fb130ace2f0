"""How long an ordinary read takes while hostile manifests are published, against a quiet API. Printed, never asserted:
`make bench-schemas`; the goal is a 99th percentile under 100 ms."""

import asyncio
import secrets
import statistics
import time

import httpx
from tests.support.hostile_schemas import four_patterns_on_a_long_default, slow_schema
from tests.support.processes import cloned_platform
from tests.support.services import admin_credentials, bare_servers
from tests.support.world import MANIFEST

MANIFESTS = 20
READS = 400
PAUSE = 0.005
LEAST_SECONDS = 10


async def log_in(http: httpx.AsyncClient, email: str, password: str) -> None:
    answer = await http.post("/v1/auth/login", json={"email": email, "password": password})
    http.headers["Authorization"] = f"Bearer {answer.raise_for_status().json()['access_token']}"


async def read(http: httpx.AsyncClient, until: asyncio.Event | None) -> list[float]:
    """Milliseconds of one read after another: so many, or until told to stop."""
    samples: list[float] = []
    while len(samples) < READS if until is None else not until.is_set():
        began = time.perf_counter()
        (await http.get("/v1/apps")).raise_for_status()
        samples.append((time.perf_counter() - began) * 1000)
        await asyncio.sleep(PAUSE)
    return samples


async def publish_all(http: httpx.AsyncClient, schema: dict[str, object], done: asyncio.Event) -> dict[str, int]:
    """All at once, each of another app, and again until it has taken long enough to measure reads beside it."""

    async def publish(slug: str) -> str:
        manifest = {**MANIFEST, "slug": slug, "inputs": schema}
        answer = await http.post("/v1/app-versions", json={"manifest": manifest})
        return str(answer.json().get("code", answer.status_code))

    answers: list[str] = []
    until = time.monotonic() + LEAST_SECONDS
    try:
        while time.monotonic() < until:
            slugs = [f"hostile-{secrets.token_hex(4)}" for _ in range(MANIFESTS)]
            answers += await asyncio.gather(*map(publish, slugs))
    finally:
        done.set()
    return {answer: answers.count(answer) for answer in answers}


def show(what: str, samples: list[float]) -> None:
    ordered = sorted(samples)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    print(f"{what:52} {len(samples):6} reads  p50 {statistics.median(samples):7.1f} ms  p99 {p99:7.1f} ms")


async def measure(api_url: str, credentials: tuple[str, str]) -> None:
    async with httpx.AsyncClient(base_url=api_url, timeout=300) as http:
        await log_in(http, *credentials)
        show("quiet", await read(http, None))
        for what, schema in (
            ("four patterns on a long default", four_patterns_on_a_long_default()),
            ("within all limits, ten seconds each", slow_schema(default=1)),
        ):
            done = asyncio.Event()
            publishing = asyncio.create_task(publish_all(http, schema, done))
            show(f"{MANIFESTS} manifests: {what}", await read(http, done))
            print(f"{'':4}answers: {await publishing}")


def main() -> None:
    with bare_servers("bench-schemas") as servers, cloned_platform(servers) as settings:
        asyncio.run(measure(settings.api_url, admin_credentials(settings)))


if __name__ == "__main__":
    main()
