"""The pump between a byte stream to a machine and a local pair of streams."""

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from gpuaas_sdk.streams import ByteStream, forward, pump

Platform = Callable[[ServerConnection], Awaitable[None]]
Carry = Callable[[ByteStream, asyncio.StreamReader, asyncio.StreamWriter], Coroutine[None, None, None]]
CONTENT = bytes(range(256)) * 2_000


@asynccontextmanager
async def pumped(
    platform: Platform, carry: "Carry" = pump
) -> AsyncIterator[tuple[ByteStream, socket.socket, asyncio.Task[None]]]:
    """A stream to this platform, the local end that the pump serves, and the pump."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    async with serve(platform, "127.0.0.1", 0) as server, asyncio.timeout(60):
        where = f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
        stream = ByteStream(await connect(where))
        reader, writer = await asyncio.open_connection(sock=theirs)
        with ours:
            yield stream, ours, asyncio.create_task(carry(stream, reader, writer))


async def read_all(end: socket.socket) -> bytes:
    content = b""
    while piece := await asyncio.get_running_loop().sock_recv(end, 65536):
        content += piece
    return content


async def test_bytes_flow_both_ways_until_the_platform_ends() -> None:
    async def platform(connection: ServerConnection) -> None:
        heard = b""
        while len(heard) < len(CONTENT):
            heard += await connection.recv(decode=False)
        await connection.send(heard[::-1])
        await connection.close(1008, "the grant has expired")

    async with pumped(platform) as (stream, end, pumping):
        loop = asyncio.get_running_loop()
        _, answer = await asyncio.gather(loop.sock_sendall(end, CONTENT), read_all(end))
        assert answer == CONTENT[::-1]
        await pumping
        assert stream.close_reason == "the grant has expired"


async def test_the_stream_is_closed_when_the_local_side_ends() -> None:
    closed = asyncio.Event()

    async def platform(connection: ServerConnection) -> None:
        await connection.wait_closed()
        closed.set()

    async with pumped(platform) as (_, end, pumping):
        end.close()
        await pumping
        await closed.wait()


async def test_a_tunnel_lets_each_side_end_its_own_direction() -> None:
    async def platform(connection: ServerConnection) -> None:
        await connection.send(b"first words")
        await connection.send(b"")
        heard = b""
        while piece := await connection.recv(decode=False):
            heard += piece
        assert heard == CONTENT
        await connection.close()

    async with pumped(platform, forward) as (stream, end, forwarding):
        assert await read_all(end) == b"first words"
        await asyncio.get_running_loop().sock_sendall(end, CONTENT)
        end.shutdown(socket.SHUT_WR)
        await forwarding
        assert stream.close_reason == ""


async def test_a_tunnel_that_is_cut_cuts_the_local_connection() -> None:
    """Also where the local side had said all that it had to say."""
    for says_no_more in (False, True):

        async def platform(connection: ServerConnection, says_no_more: bool = says_no_more) -> None:
            while says_no_more and await connection.recv(decode=False):
                pass
            await connection.close(1008, "the right has ended")

        async with pumped(platform, forward) as (stream, end, forwarding):
            if says_no_more:
                end.shutdown(socket.SHUT_WR)
            assert await read_all(end) == b""
            await forwarding
            assert stream.close_reason == "the right has ended"


async def test_a_tunnel_ends_when_the_local_side_is_gone() -> None:
    """Nobody reads what the member still says: it must hear of that."""
    gone, closed = asyncio.Event(), asyncio.Event()

    async def platform(connection: ServerConnection) -> None:
        await gone.wait()
        try:
            while True:
                await connection.send(CONTENT)
                # A send that need not wait lets nobody else run.
                await asyncio.sleep(0)
        except ConnectionClosed:
            closed.set()

    async with pumped(platform, forward) as (_, end, forwarding):
        end.close()
        gone.set()
        await forwarding
        await closed.wait()


async def test_a_bug_in_a_stream_is_not_taken_for_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(stream: ByteStream) -> bytes:
        raise KeyError("a bug")

    monkeypatch.setattr(ByteStream, "receive", broken)

    async with pumped(lambda connection: connection.wait_closed()) as (_, end, pumping):
        with pytest.raises(KeyError, match="a bug"):
            await pumping
        assert await read_all(end) == b""
