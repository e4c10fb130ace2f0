"""A platform small enough to read in a test: enrolment, the link, host certificates, artifacts, streams.

It is the other side of the wire, not a model of the real platform: it signs with a real OpenSSH
authority and moves real bytes, and it never forgets a task until its result has arrived.
"""

import asyncio
import contextlib
import hashlib
import json
import socket
import ssl
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from joserfc import jwt
from joserfc.jwk import OKPKey
from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from gpuaas_contract.agent_link import (
    AGENT_AUDIENCE,
    Hello,
    NodeConditions,
    OpenStream,
    StreamRefused,
    TaskAcknowledged,
    TaskMessage,
    TaskProgress,
    TaskResult,
    from_agent_adapter,
    task_spec_adapter,
)
from gpuaas_contract.ids import CORRELATION, NODE, STREAM, TASK, new_id

from .agent_test_authority import Authority

TOKEN = "join-token-of-the-test"
REGISTRY_TOKEN = "registry-token-of-the-test"


class Platform:
    def __init__(self, directory: Path) -> None:
        self.authority = Authority(directory)
        self.artifacts: dict[str, bytes] = {}
        self.ranges: list[str] = []
        self.node_key: str | None = None
        self.node_id = new_id(NODE)
        self.hellos: list[Hello] = []
        self.progress: list[TaskProgress] = []
        self.conditions: list[list[str]] = []
        """What the agent found wrong with its host, each time that it changed."""
        self.results: dict[str, list[TaskResult]] = {}
        self.refused: dict[str, StreamRefused] = {}
        self.acknowledge = True
        self.certificates_fail = 0
        self.port = 0
        self._unfinished: dict[str, TaskMessage] = {}
        self._links: set[ServerConnection] = set()
        self._streams: dict[str, asyncio.Future[ServerConnection]] = {}
        self._changed = asyncio.Condition()

    # What tests do

    async def send_task(self, spec: dict[str, Any], *, task_id: str | None = None) -> str:
        message = TaskMessage(
            task_id=task_id or new_id(TASK),
            correlation_id=new_id(CORRELATION),
            spec=task_spec_adapter.validate_python(spec),
        )
        self._unfinished[message.task_id] = message
        await self._broadcast(message.model_dump_json())
        return message.task_id

    async def run_task(self, spec: dict[str, Any]) -> TaskResult:
        return await self.result_of(await self.send_task(spec))

    async def result_of(self, task_id: str) -> TaskResult:
        await self.until(lambda: task_id in self.results, f"the result of {task_id}", 90)
        return self.results[task_id][-1]

    async def until(self, condition: Any, what: str, timeout: float = 30) -> None:
        try:
            async with asyncio.timeout(timeout), self._changed:
                await self._changed.wait_for(condition)
        except TimeoutError:
            raise AssertionError(f"waited {timeout} s for {what}; progress: {self.progress[-5:]}") from None

    async def drop_links(self) -> None:
        for link in list(self._links):
            await link.close(1012)

    async def open_stream(self, allocation_id: str, address: str, port: int = 22) -> ServerConnection:
        message = OpenStream(
            stream_id=new_id(STREAM),
            allocation_id=allocation_id,
            address=address,
            port=port,
            correlation_id=new_id(CORRELATION),
        )
        opened: asyncio.Future[ServerConnection] = asyncio.get_running_loop().create_future()
        self._streams[message.stream_id] = opened
        if not await self._broadcast(message.model_dump_json()):
            raise PermissionError("the node is offline")
        await self.until(lambda: opened.done() or message.stream_id in self.refused, "a stream")
        if message.stream_id in self.refused:
            raise PermissionError(self.refused[message.stream_id].message)
        return opened.result()

    @contextlib.asynccontextmanager
    async def ssh_port(self, allocation_id: str, address: str) -> AsyncIterator[int]:
        """A local port whose connections travel through the agent: what a ProxyCommand would do."""

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                stream = await self.open_stream(allocation_id, address)
            except PermissionError:
                writer.close()
                return

            async def outward() -> None:
                while data := await reader.read(65536):
                    await stream.send(data)
                await stream.close()

            task = asyncio.create_task(outward())
            async for data in stream:
                assert isinstance(data, bytes)
                writer.write(data)
                await writer.drain()
            task.cancel()
            writer.close()

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()

    # The wire

    @contextlib.asynccontextmanager
    async def listening(
        self, at: socket.socket | None = None, *, tls: ssl.SSLContext | None = None
    ) -> AsyncIterator["Platform"]:
        """Answer on a port of its own, or on the socket that was bound before."""
        inner: Server = await serve(self._websocket, "127.0.0.1", 0, max_size=None, compression=None)
        inner_port = next(iter(inner.sockets)).getsockname()[1]

        async def front(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                head = await reader.readuntil(b"\r\n\r\n")
                if b"upgrade: websocket" in head.lower():
                    await splice(reader, writer, inner_port, head)
                else:
                    await self._http(head.decode(), reader, writer)
            writer.close()

        outer = await asyncio.start_server(front, sock=at or bound_socket(), ssl=tls)
        self.port = outer.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            outer.close()
            inner.close(close_connections=True)
            await inner.wait_closed()

    async def _http(self, head: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request, *lines = head.strip().split("\r\n")
        method, path, _ = request.split()
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        body = await reader.readexactly(int(headers.get("content-length", "0")))
        status, content = await asyncio.to_thread(self._answer, method, path, headers, body)
        writer.write(f"HTTP/1.1 {status} -\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode())
        writer.write(content)
        await writer.drain()

    def _answer(self, method: str, path: str, headers: dict[str, str], body: bytes) -> tuple[int, bytes]:
        if path == "/v1/nodes/enrol":
            request = json.loads(body)
            if request["join_token"] != TOKEN or self.node_key not in (None, request["public_key_pem"]):
                return problem(401, "join_token_invalid", "The join token is unknown, used or expired.")
            self.node_key = request["public_key_pem"]
            return 200, json.dumps({"node_id": self.node_id, "name": "test-node"}).encode()
        if path.startswith("/v2/"):
            return self._blob(path.rsplit("/", 1)[1], headers)
        self.check_token(headers["authorization"])
        if path == "/v1/agent/host-certificates":
            if self.certificates_fail:
                self.certificates_fail -= 1
                return problem(503, "unavailable", "Not now.")
            request = json.loads(body)
            certificate = self.authority.sign_host(request["public_key"], request["allocation_id"])
            answer = {"certificate": certificate, "user_authority": self.authority.public}
            return 200, json.dumps(answer).encode()
        digest = path.rsplit("/", 1)[1]
        url = f"http://127.0.0.1:{self.port}/v2/apps/test/packages/blobs/{digest}"
        return 200, json.dumps({"url": url, "token": REGISTRY_TOKEN, "expires_in": 300}).encode()

    def _blob(self, digest: str, headers: dict[str, str]) -> tuple[int, bytes]:
        """The registry's part: it knows its own tokens only."""
        if headers["authorization"] != f"Bearer {REGISTRY_TOKEN}":
            return 401, b""
        if digest not in self.artifacts:
            return 404, b""
        content = self.artifacts[digest]
        if "range" in headers:
            self.ranges.append(headers["range"])
            return 206, content[int(headers["range"].removeprefix("bytes=").removesuffix("-")) :]
        return 200, content

    def check_token(self, header: str) -> None:
        assert self.node_key
        token = jwt.decode(header.removeprefix("Bearer "), OKPKey.import_key(self.node_key), algorithms=["EdDSA"])
        claims = token.claims
        assert claims["iss"] == claims["sub"] == self.node_id
        assert claims["aud"] == AGENT_AUDIENCE
        assert claims["exp"] - claims["iat"] <= 60
        assert abs(claims["iat"] - time.time()) < 10
        assert claims["jti"]

    async def _websocket(self, connection: ServerConnection) -> None:
        assert connection.request
        self.check_token(connection.request.headers["Authorization"])
        path = connection.request.path
        if path.startswith("/v1/agent/streams/"):
            self._streams.pop(path.rsplit("/", 1)[1]).set_result(connection)
            await self._notify()
            await connection.wait_closed()
            return
        assert path == "/v1/agent/link"
        with contextlib.suppress(ConnectionClosed):
            async for text in connection:
                await self._receive(connection, from_agent_adapter.validate_json(text))
        self._links.discard(connection)

    async def _receive(self, connection: ServerConnection, message: object) -> None:
        match message:
            case Hello():
                self.hellos.append(message)
                self._links.add(connection)
                for task in list(self._unfinished.values()):
                    await connection.send(task.model_dump_json())
            case NodeConditions():
                self.conditions.append([condition.message for condition in message.conditions])
            case TaskProgress():
                self.progress.append(message)
            case TaskResult():
                self.results.setdefault(message.task_id, []).append(message)
                if self.acknowledge:
                    self._unfinished.pop(message.task_id, None)
                    await connection.send(TaskAcknowledged(task_id=message.task_id).model_dump_json())
            case StreamRefused():
                self.refused[message.stream_id] = message
        await self._notify()

    async def _broadcast(self, text: str) -> bool:
        """Say it on every link that lives, and return whether there was one: a killed agent leaves its link behind."""
        delivered = False
        for link in list(self._links):
            with contextlib.suppress(ConnectionClosed):
                await link.send(text)
                delivered = True
        return delivered

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def bound_socket() -> socket.socket:
    """Take a free port of this host without listening on it yet."""
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))
    return bound


async def splice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int, head: bytes) -> None:
    inner_reader, inner_writer = await asyncio.open_connection("127.0.0.1", port)
    inner_writer.write(head)

    async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await source.read(65536):
                sink.write(data)
                await sink.drain()
        sink.close()

    await asyncio.gather(copy(reader, inner_writer), copy(inner_reader, writer))


def problem(status: int, code: str, detail: str) -> tuple[int, bytes]:
    body = {
        "type": f"https://gpuaas.example/problems/{code}",
        "title": code,
        "status": status,
        "detail": detail,
        "code": code,
        "correlation_id": new_id(CORRELATION),
        "retryable": status == 503,
    }
    return status, json.dumps(body).encode()


def digest_of(content: bytes) -> str:
    return f"sha256:{hashlib.sha256(content).hexdigest()}"
