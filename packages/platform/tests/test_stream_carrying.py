"""Carrying bytes between a client and a machine's agent, without either of them."""

import asyncio
from typing import cast

from fastapi import WebSocket, WebSocketDisconnect

from gpuaas_platform.api.streams import Joined, carry


class Side:
    """One end of a stream: what it will say, then silence or an end; and what it was told."""

    def __init__(self, *says: bytes, hangs_up: bool = False, deaf: bool = False) -> None:
        self._says = list(says)
        self._hangs_up = hangs_up
        self._deaf = deaf
        self.heard: list[bytes] = []
        self.told = asyncio.Event()

    async def receive_bytes(self) -> bytes:
        await asyncio.sleep(0)
        if self._says:
            return self._says.pop(0)
        if self._hangs_up:
            raise WebSocketDisconnect
        return await asyncio.Future[bytes]()

    async def send_bytes(self, content: bytes) -> None:
        if self._deaf:
            raise RuntimeError("closed")
        self.heard.append(content)
        self.told.set()


def joined(agent: Side) -> Joined:
    return Joined(cast(WebSocket, agent), "acg_1", "usr_1", asyncio.Event())


async def test_bytes_are_counted_until_one_side_ends() -> None:
    client, agent = Side(b"abc", b"de", hangs_up=True), Side(b"0123")
    stream = joined(agent)
    async with asyncio.timeout(60):
        await carry(stream, client.receive_bytes, client.send_bytes)
    assert (agent.heard, client.heard) == ([b"abc", b"de"], [b"0123"])
    assert (stream.to_machine, stream.from_machine) == (5, 4)


async def test_it_ends_when_the_right_ends() -> None:
    client, agent = Side(), Side(b"0123")
    stream = joined(agent)
    async with asyncio.timeout(60):
        carrying = asyncio.create_task(carry(stream, client.receive_bytes, client.send_bytes))
        await client.told.wait()
        assert not carrying.done()
        stream.cut.set()
        await carrying


async def test_the_last_words_of_a_machine_that_hung_up_reach_the_client() -> None:
    pieces = [bytes([number]) for number in range(100)]
    client, agent = Side(b"abc"), Side(*pieces, hangs_up=True, deaf=True)
    stream = joined(agent)
    async with asyncio.timeout(60):
        await carry(stream, client.receive_bytes, client.send_bytes)
    assert client.heard == pieces
    assert stream.to_machine == 0


async def test_nothing_goes_on_after_a_cancellation() -> None:
    client, agent = Side(), Side(b"0123")
    before = asyncio.all_tasks()
    carrying = asyncio.create_task(carry(joined(agent), client.receive_bytes, client.send_bytes))
    await client.told.wait()
    carrying.cancel()
    await asyncio.gather(carrying, return_exceptions=True)
    assert asyncio.all_tasks() == before
