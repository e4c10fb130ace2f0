"""Streams to machines, without a client or an agent: carrying bytes, and what is said where no agent comes."""

import asyncio
from types import SimpleNamespace
from typing import cast

import pytest
from fastapi import WebSocket, WebSocketDisconnect

from gpuaas_platform.access.records import AccessGrantRecord
from gpuaas_platform.access.routes.streams import Joined, StreamBroker, carry
from gpuaas_platform.allocations.records import AllocationView
from gpuaas_platform.api.links import AgentLinks
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.observability.metrics import Metrics
from gpuaas_platform.platform import Platform, StreamLimits


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


async def test_an_agent_that_opens_no_stream_is_said_not_to_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    async def send(node_id: str, message: object) -> None:
        pass

    monkeypatch.setattr("gpuaas_platform.access.routes.streams.OPEN_SECONDS", 0)
    links = SimpleNamespace(refused_streams={}, is_connected=lambda node_id: True, send=send)
    platform = SimpleNamespace(stream_limits=StreamLimits(streams_per_principal=1, terminal_idle_seconds=60))
    broker = StreamBroker(cast(Platform, platform), cast(AgentLinks, links), cast(Metrics, None))
    machine = SimpleNamespace(id="alc_1", node_id="nod_1", address="10.85.1.10")
    access = SimpleNamespace(id="acg_1", principal_id="usr_1")
    with pytest.raises(Refusal, match="through its node: no answer"):
        async with broker.join(cast(AccessGrantRecord, access), cast(AllocationView, machine), "cor_1"):
            pytest.fail("there is no stream")
    assert (broker.count, links.refused_streams) == (0, {})
