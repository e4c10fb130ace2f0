"""A way from a controller to the API that records everything and can go wrong in every way that a network can."""

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from gpuaas_contract.problems import Code
from gpuaas_contract.trust import client_context

logger = logging.getLogger(__name__)
_HEAD_LIMIT = 1024 * 1024


@dataclass
class Exchange:
    """One request of a controller, and what became of it."""

    number: int
    at: float
    method: str
    path: str
    body: str
    status: int | None = None
    """None where it was not answered."""
    answer: str = ""

    @property
    def json(self) -> dict[str, Any]:
        return _object(self.body)

    @property
    def answer_json(self) -> dict[str, Any]:
        return _object(self.answer)

    @property
    def accepted(self) -> bool:
        return self.status is not None and 200 <= self.status < 300


def _object(text: str) -> dict[str, Any]:
    with suppress(ValueError):
        found = json.loads(text)
        if isinstance(found, dict):
            return found
    return {}


@dataclass(frozen=True)
class Refuse:
    """Answered here; the API never hears of it."""

    code: Code


class LoseRequest:
    """Never reaches the API; the connection breaks."""


@dataclass(frozen=True)
class LoseAnswer:
    """Reaches the API, which does what was asked; the connection breaks before the answer."""

    then: Callable[[], None] = lambda: None
    """Called at that moment."""


Fault = Refuse | LoseRequest | LoseAnswer
Weather = Callable[[Exchange], Awaitable[Fault | None]]


@dataclass
class FaultProxy:
    upstream: str
    weather: Weather | None = None
    streams_cut: bool = False
    """Machines do not answer: their byte streams are refused, and those that are open break."""
    ca_file: str | None = None
    exchanges: list[Exchange] = field(default_factory=list)
    _streams: set[asyncio.StreamWriter] = field(default_factory=set)
    _server: asyncio.Server | None = None
    _serving: set["asyncio.Task[None]"] = field(default_factory=set)

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, limit=_HEAD_LIMIT)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._serving:
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    @property
    def port(self) -> int:
        assert self._server is not None
        return int(self._server.sockets[0].getsockname()[1])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def cut_streams(self) -> None:
        for writer in list(self._streams):
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            await self._exchange(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ValueError) as error:
            logger.debug("a connection ended: %s", error)
        finally:
            self._serving.discard(task)
            with suppress(OSError):
                writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.rstrip("\r\n").split("\r\n")
        method, path, _ = first.split(" ", 2)
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        loop = asyncio.get_running_loop()
        exchange = Exchange(len(self.exchanges), loop.time(), method, path, body.decode(errors="replace"))
        self.exchanges.append(exchange)
        is_stream = "upgrade" in headers
        fault: Fault | None = LoseRequest() if is_stream and self.streams_cut else None
        if fault is None and self.weather is not None:
            fault = await self.weather(exchange)
        if isinstance(fault, LoseRequest):
            writer.transport.abort()
            return
        if isinstance(fault, Refuse):
            exchange.status = fault.code.status
            writer.write(_problem(fault))
            await writer.drain()
            return
        target = urlsplit(self.upstream)
        trust = client_context(self.upstream, self.ca_file) if target.scheme == "https" else None
        up_reader, up_writer = await asyncio.open_connection(
            target.hostname, target.port or (443 if trust else 80), limit=_HEAD_LIMIT, ssl=trust
        )
        try:
            kept = [line for line in lines if is_stream or not line.lower().startswith("connection:")]
            sent = [first, *kept] if is_stream else [first, *kept, "Connection: close"]
            up_writer.write(("\r\n".join(sent) + "\r\n\r\n").encode("latin-1") + body)
            await up_writer.drain()
            answer_head = await up_reader.readuntil(b"\r\n\r\n")
            exchange.status = int(answer_head.split(b" ", 2)[1])
            if is_stream or b"text/event-stream" in answer_head.lower():
                writer.write(answer_head)
                await self._join(reader, writer, up_reader, up_writer, is_stream=is_stream)
                return
            content = await up_reader.read(-1)
            exchange.answer = content.decode(errors="replace")
            if isinstance(fault, LoseAnswer):
                fault.then()
                writer.transport.abort()
                return
            writer.write(answer_head + content)
            await writer.drain()
        finally:
            up_writer.close()

    async def _join(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        up_reader: asyncio.StreamReader,
        up_writer: asyncio.StreamWriter,
        *,
        is_stream: bool,
    ) -> None:
        if is_stream:
            self._streams.add(writer)
        ways = [asyncio.create_task(_pipe(reader, up_writer)), asyncio.create_task(_pipe(up_reader, writer))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._streams.discard(writer)
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)


async def _pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(64 * 1024):
            writer.write(data)
            await writer.drain()


def _problem(fault: Refuse) -> bytes:
    body = json.dumps(
        {
            "type": f"https://gpuaas.dev/problems/{fault.code}",
            "title": fault.code.problem_title,
            "status": fault.code.status,
            "detail": "the conformance kit says so",
            "code": fault.code,
            "correlation_id": "cor_conformance",
            "retryable": True,
        }
    ).encode()
    head = (
        f"HTTP/1.1 {fault.code.status} X\r\nContent-Type: application/problem+json\r\nRetry-After: 1\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body
