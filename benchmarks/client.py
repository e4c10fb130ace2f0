"""A client that costs little: the measured side should be the server. HTTP/1.1 with keep-alive, no more of it."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Measured:
    rate: float
    p50_ms: float
    p99_ms: float


def get(path: str, token: str | None) -> bytes:
    return _head("GET", path, token) + b"\r\n"


def post(path: str, token: str | None, body: bytes, key: str | None) -> bytes:
    head = _head("POST", path, token) + f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n".encode()
    if key is not None:
        head += f"Idempotency-Key: {key}\r\n".encode()
    return head + b"\r\n" + body


def _head(method: str, path: str, token: str | None) -> bytes:
    head = f"{method} {path} HTTP/1.1\r\nHost: bench\r\n"
    return (head + (f"Authorization: Bearer {token}\r\n" if token else "")).encode()


async def measure(port: int, request: Callable[[], bytes], seconds: float, clients: int = 8) -> Measured:
    times: list[float] = []
    started = time.perf_counter()
    until = started + seconds
    await asyncio.gather(*(_client(port, request, until, times) for _ in range(clients)))
    took = time.perf_counter() - started
    times.sort()
    return Measured(len(times) / took, times[len(times) // 2] * 1000, times[len(times) * 99 // 100] * 1000)


async def _client(port: int, request: Callable[[], bytes], until: float, times: list[float]) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        while (begun := time.perf_counter()) < until:
            writer.write(request())
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r")[0])
            body = await reader.readexactly(length)
            if head[9:10] != b"2":
                raise RuntimeError(f"refused: {head.decode()}{body.decode()}")
            times.append(time.perf_counter() - begun)
    finally:
        writer.close()
