"""The way in: byte streams between the platform and a port of one of this node's own slices."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from structlog.contextvars import bound_contextvars
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, WebSocketException
from websockets.frames import CloseCode

from gpuaas_agent.api import PlatformApi
from gpuaas_agent.errors import AgentError, PermanentError, reason_of
from gpuaas_agent.lxd import Instance
from gpuaas_agent.machine_port import check_port, open_machine_port
from gpuaas_agent.slice_config import READY_TAG, address_of, network_of
from gpuaas_agent.slices import SliceManager
from gpuaas_contract.agent_link import OpenStream, StreamRefused

log = logging.getLogger(__name__)

CHUNK = 64 * 1024
FRAME_LIMIT = 16 * 1024 * 1024
CONNECT_SECONDS = 5


def check_stream(message: OpenStream, instance: Instance | None) -> Instance:
    """Refuse an address that is not that of the allocation's running slice, by this node's own records."""
    check_port(message.port)
    if instance is None or READY_TAG not in instance.config:
        raise PermanentError(f"{message.allocation_id} has no slice on this node")
    if address_of(instance) != message.address:
        raise PermanentError(f"{message.address} is not the address of {message.allocation_id}")
    if not instance.running:
        raise PermanentError(f"the slice of {message.allocation_id} is {instance.status.lower()}")
    return instance


Dial = Callable[[OpenStream], Awaitable[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]
"""Connects to the machine that a stream is for, after a look whether it is one of this node's own."""


def dial_slices(slices: SliceManager) -> Dial:
    async def dial(message: OpenStream) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        instance = check_stream(message, await slices.find(message.allocation_id))
        return await open_machine_port(
            network_of(instance).bridge, message.address, message.port, timeout=CONNECT_SECONDS
        )

    return dial


class StreamManager:
    def __init__(self, api: PlatformApi, dial: Dial, send: Callable[[StreamRefused], None]) -> None:
        self._api = api
        self._dial = dial
        self._send = send
        self._running: dict[str, tuple[str, asyncio.Task[None]]] = {}

    def open(self, message: OpenStream) -> None:
        if message.stream_id in self._running:
            return
        task = asyncio.create_task(self._run(message), name=message.stream_id)
        self._running[message.stream_id] = (message.allocation_id, task)

    def cut(self, allocation_id: str) -> None:
        """End the streams of a deleted machine, which sends no farewell: they would stay open until TCP gives up."""
        for owner, task in self._running.values():
            if owner == allocation_id:
                task.cancel()

    async def aclose(self) -> None:
        tasks = [task for _, task in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self, message: OpenStream) -> None:
        with bound_contextvars(correlation_id=message.correlation_id):
            try:
                await self._serve(message)
            except (AgentError, OSError, TimeoutError, WebSocketException) as error:
                reason = reason_of(error)
                log.warning("stream %s to %s refused: %s", message.stream_id, message.allocation_id, reason)
                self._send(StreamRefused(stream_id=message.stream_id, message=reason))
            finally:
                self._running.pop(message.stream_id, None)

    async def _serve(self, message: OpenStream) -> None:
        try:
            reader, writer = await self._dial(message)
        except ConnectionRefusedError:
            raise PermanentError(f"nothing listens on port {message.port} of the machine's address") from None
        try:
            async with connect(
                self._api.websocket_url(f"/v1/agent/streams/{message.stream_id}"),
                additional_headers=self._api.headers(),
                compression=None,  # What flows is encrypted already.
                max_size=FRAME_LIMIT,
                max_queue=4,
                ssl=self._api.websocket_trust(),
            ) as platform:
                try:
                    sent, received = await pump(reader, writer, platform, half_close=message.half_close)
                except asyncio.CancelledError:
                    await platform.close(CloseCode.GOING_AWAY, "the machine or the agent ends")
                    raise
            log.info(
                "stream %s to %s ended: %d bytes in, %d bytes out",
                message.stream_id,
                message.allocation_id,
                received,
                sent,
            )
        finally:
            writer.close()


async def pump(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, platform: ClientConnection, *, half_close: bool = False
) -> tuple[int, int]:
    """Copy both ways until either side ends, or with `half_close` until both have said that no more bytes follow. The
    machine's last bytes are sent before the stream is closed.

    Each direction waits for the slower side, so that nothing piles up here.
    """
    counts = {"sent": 0, "received": 0}
    heard_all = asyncio.Event()
    """The platform said that no more bytes follow."""

    async def machine_to_platform() -> None:
        try:
            while data := await reader.read(CHUNK):
                await platform.send(data)
                counts["sent"] += len(data)
            if half_close:
                await platform.send(b"")
                await heard_all.wait()
        except (ConnectionClosed, OSError):
            pass
        await platform.close()

    async def platform_to_machine() -> None:
        try:
            async for data in platform:
                if writer.is_closing() or heard_all.is_set():
                    continue  # Keeps reading, so that the closing handshake is not stuck behind it.
                if half_close and not data:
                    writer.write_eof()
                    heard_all.set()
                    continue
                writer.write(data.encode() if isinstance(data, str) else data)
                counts["received"] += len(data)
                await writer.drain()
        except (ConnectionClosed, OSError):
            pass

    upward = asyncio.create_task(machine_to_platform())
    downward = asyncio.create_task(platform_to_machine())
    try:
        await asyncio.wait({upward, downward}, return_when=asyncio.FIRST_COMPLETED)
        if upward.done():
            await downward
    finally:
        upward.cancel()
        downward.cancel()
        await asyncio.gather(upward, downward, return_exceptions=True)
    return counts["sent"], counts["received"]
