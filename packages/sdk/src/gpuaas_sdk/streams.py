"""A byte stream to a machine's sshd or to a port of a member: a WebSocket through the machine's node agent."""

import asyncio
import ssl
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self
from urllib.parse import quote

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from gpuaas_contract.trust import TrustError, client_context, explain
from gpuaas_contract.wire import API_PREFIX, CORRELATION_HEADER
from gpuaas_sdk.correlation import current_correlation_id

# Models and the HTTP client are loaded where something goes wrong only: a ProxyCommand starts for every connection.
if TYPE_CHECKING:
    from gpuaas_sdk.transport import Transport

OPEN_TIMEOUT = 15.0
CLOSE_TIMEOUT = 2.0
CHUNK = 64 * 1024


class ByteStream:
    """Bytes in both directions until either side closes; `receive` returns b"" at the end."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    async def send(self, data: bytes) -> None:
        try:
            await self._socket.send(data)
        except ConnectionClosed as error:
            from gpuaas_sdk.errors import TransportError

            raise TransportError(f"the stream was cut: {error}") from error

    async def receive(self) -> bytes:
        return await self.receive_message() or b""

    async def receive_message(self) -> bytes | None:
        """Return the next message, which may be empty, or None when the stream has ended."""
        try:
            message = await self._socket.recv(decode=False)
        except ConnectionClosed:
            return None
        return message if isinstance(message, bytes) else bytes(message)

    @property
    def close_reason(self) -> str:
        """Why the platform ended the stream, in its own words; empty when it just ended."""
        return self._socket.close_reason or ""

    async def close(self) -> None:
        await self._socket.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


async def open_stream(transport: "Transport", grant_id: str, allocation_id: str) -> ByteStream:
    """Open a stream of an access grant; a refusal comes as the platform's own problem."""
    token = await transport.token()
    return await open_stream_with(transport.api_url, token, grant_id, allocation_id, ca_file=transport.ca_file)


async def open_stream_with(
    api_url: str, token: str, grant_id: str, allocation_id: str, *, ca_file: str | Path | None = None
) -> ByteStream:
    """Open a stream with a given token."""
    path = f"/access-grants/{grant_id}/allocations/{allocation_id}/stream"
    return await _open(api_url, token, path, f"a stream to {allocation_id}", ca_file)


async def open_port(transport: "Transport", member_id: str, port: str) -> ByteStream:
    """Open a connection to a port of a member; `forward` pumps it."""
    path = f"/members/{quote(member_id, safe='')}/ports/{quote(port, safe='')}/stream"
    token = await transport.token()
    return await _open(transport.api_url, token, path, f"a stream to port {port} of {member_id}", transport.ca_file)


async def _open(api_url: str, token: str, path: str, what: str, ca_file: str | Path | None) -> ByteStream:
    url = api_url.rstrip("/").replace("http", "ws", 1)
    headers = {
        "Authorization": f"Bearer {token}",
        CORRELATION_HEADER: current_correlation_id(),
    }
    try:
        socket = await connect(
            f"{url}{API_PREFIX}{path}",
            additional_headers=headers,
            open_timeout=OPEN_TIMEOUT,
            close_timeout=CLOSE_TIMEOUT,
            # SSH packets do not compress, nor does what others encrypt; and there is no largest message.
            compression=None,
            max_size=None,
            ssl=_trusted(url, ca_file),
        )
    except InvalidStatus as refusal:
        from gpuaas_sdk.transport import error_from_answer

        response = refusal.response
        raise error_from_answer(
            response.status_code,
            {k.lower(): v for k, v in response.headers.raw_items()},
            bytes(response.body or b""),
        ) from None
    except (TimeoutError, OSError, InvalidHandshake) as error:
        from gpuaas_sdk.errors import CertificateError, TransportError

        if words := explain(error):
            raise CertificateError(f"cannot open {what}: {words}") from error
        raise TransportError(f"cannot open {what}: {str(error) or type(error).__name__}") from error
    return ByteStream(socket)


def _trusted(url: str, ca_file: str | Path | None) -> ssl.SSLContext | None:
    if not url.startswith("wss:"):
        return None
    try:
        return client_context(url, ca_file)
    except TrustError as error:
        from gpuaas_sdk.errors import CertificateError

        raise CertificateError(str(error)) from None


async def pump(stream: ByteStream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy both ways until either side ends; then close stream and writer. A lost connection is an end like any other:
    the stream's `close_reason` may say more."""

    async def to_machine() -> None:
        while data := await reader.read(CHUNK):
            await stream.send(data)

    async def from_machine() -> None:
        while data := await stream.receive():
            writer.write(data)
            await writer.drain()

    directions = [asyncio.create_task(to_machine()), asyncio.create_task(from_machine())]
    try:
        await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for direction in directions:
            direction.cancel()
        ended = await asyncio.gather(*directions, return_exceptions=True)
        writer.close()
        await stream.close()
    for outcome in ended:
        if isinstance(outcome, Exception) and not _is_lost_connection(outcome):
            raise outcome


async def forward(stream: ByteStream, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy both ways between a port of a member and a local connection, as TCP does: each side may end its own
    direction, and the other goes on until it ends, too. A stream that is cut cuts the local connection."""

    async def to_member() -> None:
        while data := await reader.read(CHUNK):
            await stream.send(data)
        await stream.send(b"")

    async def from_member() -> None:
        while (data := await stream.receive_message()) is not None:
            if data:
                writer.write(data)
                await writer.drain()
            elif writer.can_write_eof():
                writer.write_eof()

    sending, receiving = asyncio.create_task(to_member()), asyncio.create_task(from_member())
    try:
        # The member's machine closes the stream when both directions have ended.
        await asyncio.wait({sending, receiving}, return_when=asyncio.FIRST_COMPLETED)
        if sending.done() and sending.exception() is None:
            await asyncio.wait({receiving})
    finally:
        for direction in (sending, receiving):
            direction.cancel()
        ended = await asyncio.gather(sending, receiving, return_exceptions=True)
        writer.close()
        await stream.close()
    for outcome in ended:
        if isinstance(outcome, Exception) and not _is_lost_connection(outcome):
            raise outcome


def _is_lost_connection(error: Exception) -> bool:
    from gpuaas_sdk.errors import TransportError

    return isinstance(error, TransportError | OSError)
