"""A byte stream to a machine's sshd, carried by a WebSocket through the machine's node agent."""

import asyncio
import ssl
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

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
        try:
            message = await self._socket.recv(decode=False)
        except ConnectionClosed:
            return b""
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
    url = api_url.rstrip("/").replace("http", "ws", 1)
    headers = {
        "Authorization": f"Bearer {token}",
        CORRELATION_HEADER: current_correlation_id(),
    }
    try:
        socket = await connect(
            f"{url}{API_PREFIX}/access-grants/{grant_id}/allocations/{allocation_id}/stream",
            additional_headers=headers,
            open_timeout=OPEN_TIMEOUT,
            close_timeout=CLOSE_TIMEOUT,
            # SSH packets do not compress, and there is no largest message.
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

        what = f"cannot open a stream to {allocation_id}"
        if words := explain(error):
            raise CertificateError(f"{what}: {words}") from error
        raise TransportError(f"{what}: {str(error) or type(error).__name__}") from error
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


def _is_lost_connection(error: Exception) -> bool:
    from gpuaas_sdk.errors import TransportError

    return isinstance(error, TransportError | OSError)
