"""A byte stream to a machine's sshd, carried by a WebSocket through the machine's node agent."""

from types import TracebackType
from typing import Self

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from gpuaas_contract.base import API_PREFIX
from gpuaas_contract.problems import CORRELATION_HEADER
from gpuaas_sdk.correlation import current_correlation_id
from gpuaas_sdk.errors import TransportError
from gpuaas_sdk.transport import Transport, error_from_answer

OPEN_TIMEOUT = 15.0
CLOSE_TIMEOUT = 2.0


class ByteStream:
    """Bytes in both directions until either side closes; `receive` returns b"" at the end."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket = socket

    async def send(self, data: bytes) -> None:
        try:
            await self._socket.send(data)
        except ConnectionClosed as error:
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


async def open_stream(transport: Transport, grant_id: str, allocation_id: str) -> ByteStream:
    """Open a stream of an access grant; a refusal comes as the platform's own problem."""
    url = transport.api_url.replace("http", "ws", 1)
    headers = {
        "Authorization": f"Bearer {await transport.token()}",
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
        )
    except InvalidStatus as refusal:
        response = refusal.response
        raise error_from_answer(
            response.status_code,
            {k.lower(): v for k, v in response.headers.raw_items()},
            bytes(response.body or b""),
        ) from None
    except (TimeoutError, OSError, InvalidHandshake) as error:
        raise TransportError(f"cannot open a stream to {allocation_id}: {error or type(error).__name__}") from error
    return ByteStream(socket)
