"""`make bench-logins`: a rightful log-in beside a flood of guesses from one address, and from fifty."""

import asyncio
import json
import multiprocessing
import secrets
import time
from collections import Counter
from multiprocessing.synchronize import Event

import httpx
from tests.support.services import admin_credentials, platform_services

from benchmarks.client import post

LOGINS = 20
MOST_SECONDS = 30
MOST_GUESSES = 10_000
CONNECTIONS = 50
FLOODS = {"nobody else": 0, "a flood from 1 address": 1, "a flood from 50 addresses": 50}
COMPARED = f"""\
{LOGINS} log-ins one after another with the right password, while {CONNECTIONS} connections of another process
guess with e-mails that nobody has, as quickly as they are answered: {MOST_GUESSES} guesses and {MOST_SECONDS} s
at most. All on the loopback (127.0.0.0/8), all limits and the cost of a hash as they are by default. The first log-in
is from an address that the platform does not know yet; where it is told to wait, the wait counts.
"""
spawn = multiprocessing.get_context("spawn")


def flood(port: int, addresses: list[str], stopping: Event, counts: "multiprocessing.Queue[Counter[str]]") -> None:
    """Guess until told to stop, or until it is enough."""
    answers: Counter[str] = Counter()

    async def guess(address: str) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(address, 0))
        while not stopping.is_set() and answers.total() < MOST_GUESSES:
            body = {"email": f"{secrets.token_hex(6)}@example.com", "password": secrets.token_hex(6)}
            writer.write(post("/v1/auth/login", None, json.dumps(body).encode(), None))
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
            await reader.readexactly(length)
            answers[head[9:12].decode()] += 1
        writer.close()

    async def guess_all() -> None:
        each = CONNECTIONS // len(addresses)
        await asyncio.gather(*(guess(address) for address in addresses for _ in range(each)))

    asyncio.run(guess_all())
    counts.put(answers)


def log_in(url: str, address: str, email: str, password: str) -> list[float]:
    times: list[float] = []
    ends_at = time.perf_counter() + MOST_SECONDS
    transport = httpx.HTTPTransport(local_address=address)
    with httpx.Client(base_url=url, transport=transport, timeout=60) as http:
        while len(times) < LOGINS and time.perf_counter() < ends_at:
            begun = time.perf_counter()
            while (answer := http.post("/v1/auth/login", json={"email": email, "password": password})).is_error:
                time.sleep(float(answer.headers["retry-after"]))
            times.append(time.perf_counter() - begun)
    return times


def measure(url: str, number: int, guessing: int, email: str, password: str) -> tuple[list[float], Counter[str]]:
    home = f"127.0.{number}.1"
    if not guessing:
        return log_in(url, home, email, password), Counter()
    stopping, counts = spawn.Event(), spawn.Queue()
    addresses = [f"127.0.{number}.{100 + place}" for place in range(guessing)]
    flooding = spawn.Process(target=flood, args=(int(url.rpartition(":")[2]), addresses, stopping, counts))
    flooding.start()
    try:
        times = log_in(url, home, email, password)
    finally:
        stopping.set()
        answers = counts.get(timeout=60)
        flooding.join()
    return times, answers


def main() -> None:
    print(COMPARED)
    with platform_services("bench-logins") as settings:
        print(f"{'beside':26} {'first':>8} {'p50':>8} {'p99':>8}   guesses looked at / refused before")
        for number, (what, guessing) in enumerate(FLOODS.items(), start=1):
            times, answers = measure(settings.api_url, number, guessing, *admin_credentials(settings))
            first, *rest = times
            p50, p99 = (sorted(rest)[len(rest) * part // 100] * 1_000 for part in (50, 99))
            numbers = " ".join(f"{number:5.0f} ms" for number in (first * 1_000, p50, p99))
            print(f"{what:26} {numbers}   {answers['401']} / {answers['429']}")


if __name__ == "__main__":
    main()
