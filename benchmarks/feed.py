"""How long a committed change takes to its readers, against bare LISTEN/NOTIFY; how many changes a second the feed
bears; how long the command line takes to start. Printed, never asserted: `make bench-feed`."""

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import psycopg
from tests.support.feed_platform import FeedPlatform, feed_platform
from tests.support.services import admin_credentials, bare_servers

INSERT = """WITH written AS (
    INSERT INTO changes (noun, resource_id, event, message, revision, correlation_id)
    VALUES ('node', 'nod_bench', 'measured', %s, 1, 'cor_bench'))
SELECT pg_notify('outbox', '')"""
Samples = list[float]


class Reader:
    """A bare client: it looks for the marks of the writer in what comes in, and notes when it saw them."""

    def __init__(self) -> None:
        self.seen: dict[int, float] = {}
        self.ready = asyncio.Event()

    async def run(self, port: int, token: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
        request = (
            f"GET /v1/changes?noun=node HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer {token}\r\n"
            "Accept: text/event-stream\r\n\r\n"
        )
        writer.write(request.encode())
        try:
            while line := await reader.readline():
                if line.startswith(b"id: "):
                    self.ready.set()
                elif line.startswith(b"data: "):
                    _, _, rest = line.partition(b'"message":"')
                    self.seen[int(rest.partition(b'"')[0])] = time.perf_counter()
        finally:
            writer.close()


async def write_paced(database_url: str, count: int, pause: float, first: int) -> dict[int, float]:
    """When each was about to be committed: the same moment is taken for the bare notification."""
    started: dict[int, float] = {}
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        for number in range(first, first + count):
            await connection.execute(INSERT, [str(number)])
            started[number] = time.perf_counter()
            await connection.commit()
            await asyncio.sleep(pause)
    return started


async def bare_samples(database_url: str, listeners: int, count: int, pause: float) -> Samples:
    samples: Samples = []
    started: dict[int, float] = {}

    async def listen(ready: asyncio.Event) -> None:
        async with await psycopg.AsyncConnection.connect(database_url, autocommit=True) as connection:
            await connection.execute("LISTEN bench")
            ready.set()
            async for notification in connection.notifies():
                samples.append(time.perf_counter() - started[int(notification.payload)])

    events = [asyncio.Event() for _ in range(listeners)]
    tasks = [asyncio.create_task(listen(event)) for event in events]
    await asyncio.gather(*(event.wait() for event in events))
    async with await psycopg.AsyncConnection.connect(database_url) as connection:
        for number in range(count):
            await connection.execute("SELECT pg_notify('bench', %s)", [str(number)])
            started[number] = time.perf_counter()
            await connection.commit()
            await asyncio.sleep(pause)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    return samples


async def with_readers(
    platform: FeedPlatform, token: str, count: int, work: Callable[[list[Reader]], Awaitable[None]]
) -> None:
    readers = [Reader() for _ in range(count)]
    port = platform.settings.api_port
    tasks = []
    for start in range(0, count, 50):
        tasks += [asyncio.create_task(reader.run(port, token)) for reader in readers[start : start + 50]]
        await asyncio.gather(*(reader.ready.wait() for reader in readers[start : start + 50]))
    await work(readers)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def feed_samples(platform: FeedPlatform, token: str, readers: int, count: int, pause: float) -> Samples:
    samples: Samples = []

    async def work(reading: list[Reader]) -> None:
        started = await write_paced(platform.database_url, count, pause, 0)
        await _until(lambda: all(len(reader.seen) == count for reader in reading), 60)
        for reader in reading:
            assert list(reader.seen) == sorted(started), "each once and in order"
            samples.extend(reader.seen[number] - at for number, at in started.items())

    await with_readers(platform, token, readers, work)
    return samples


async def sustained(platform: FeedPlatform, token: str, writers: int, seconds: float) -> tuple[float, float]:
    """Changes written a second, and received a second until the last one was."""
    rates: list[float] = []

    async def work(reading: list[Reader]) -> None:
        counter = iter(range(10_000_000))
        started = time.perf_counter()

        async def write() -> None:
            async with await psycopg.AsyncConnection.connect(platform.database_url) as connection:
                while time.perf_counter() - started < seconds:
                    await connection.execute(INSERT, [str(next(counter))])
                    await connection.commit()

        await asyncio.gather(*(write() for _ in range(writers)))
        written = next(counter)
        wrote = time.perf_counter() - started
        await _until(lambda: len(reading[0].seen) == written, 120)
        rates.extend([written / wrote, written / (time.perf_counter() - started)])

    await with_readers(platform, token, 1, work)
    return rates[0], rates[1]


async def _until(condition: Callable[[], bool], seconds: float) -> None:
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - looks at what others noted
            await asyncio.sleep(0.01)


def percentile(samples: Samples, share: float) -> float:
    return sorted(samples)[min(len(samples) - 1, int(len(samples) * share))] * 1000


def show(name: str, samples: Samples, base: Samples | None = None) -> None:
    p50, p99 = percentile(samples, 0.5), percentile(samples, 0.99)
    ratio = ""
    if base is not None:
        ratio = f"   {p50 / percentile(base, 0.5):6.1f} and {p99 / percentile(base, 0.99):6.1f} times bare"
    print(f"  {name:<28} p50 {p50:8.2f} ms   p99 {p99:8.2f} ms{ratio}", flush=True)


def measure_start(platform: FeedPlatform) -> None:
    """Interleaved, so that whatever else the machine does meets all alike; medians."""
    email, password = admin_credentials(platform.settings)
    program = str(Path(sys.executable).parent / "gpuaas")
    with tempfile.TemporaryDirectory() as home:
        env = {"HOME": home, "PATH": os.environ["PATH"], "GPUAAS_PASSWORD": password}
        login = [program, "login", "--api-url", platform.api_url, "--email", email]
        subprocess.run(login, env=env, check=True, capture_output=True)
        commands = {
            "python -c pass": [sys.executable, "-c", "pass"],
            "gpuaas --version": [program, "--version"],
            "gpuaas whoami": [program, "whoami"],
            "gpuaas tenant list": [program, "tenant", "list"],
        }
        times: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(7):
            for name, command in commands.items():
                started = time.perf_counter()
                subprocess.run(command, env=env, check=True, capture_output=True)
                times[name].append(time.perf_counter() - started)
    base = statistics.median(times["python -c pass"])
    for name, found in times.items():
        median = statistics.median(found)
        print(f"  {name:<28} {median:6.3f} s   {median / base:5.1f} times python -c pass   (best {min(found):.3f} s)")


async def measure(platform: FeedPlatform) -> None:
    async with platform.admin() as admin:
        token = await admin.token()
    url = platform.database_url
    print("commit to received:")
    bare = await bare_samples(url, 1, 100, 0.02)
    show("bare NOTIFY, 1 listener", bare)
    show("bare NOTIFY, 50 listeners", await bare_samples(url, 50, 40, 0.05))
    show("feed, 1 reader", await feed_samples(platform, token, 1, 100, 0.02), bare)
    show("feed, 100 readers", await feed_samples(platform, token, 100, 60, 0.1), bare)
    show("feed, 1,000 readers", await feed_samples(platform, token, 1_000, 15, 1.0), bare)
    written, received = await sustained(platform, token, 4, 4)
    print(f"sustained, 4 writers: {written:.0f} changes a second written, {received:.0f} received", flush=True)


def main() -> None:
    print(f"load of the machine at the start: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    with (
        bare_servers("feedbench") as servers,
        feed_platform(servers, feed_streams_per_principal="2000") as platform,
    ):
        asyncio.run(measure(platform))
        print("start of the command line:")
        measure_start(platform)


if __name__ == "__main__":
    main()
