"""Streams: whose address may be dialled, and that no byte is lost at the end."""

import asyncio
import hashlib

import pytest
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve

from gpuaas_agent.errors import PermanentError
from gpuaas_agent.lxd import Instance
from gpuaas_agent.slice_config import READY_TAG
from gpuaas_agent.streams import check_stream, pump
from gpuaas_contract.agent_link import OpenStream

MESSAGE = OpenStream(stream_id="stm_1", allocation_id="alc_1", address="10.85.1.10", port=22, correlation_id="cor_1")
DEVICES = {"eth0": {"type": "nic", "ipv4.address": "10.85.1.10"}}


def test_only_a_running_slice_with_that_address_is_dialled() -> None:
    ready = {READY_TAG: "true"}
    good = Instance("alc-1", "Running", ready, DEVICES)
    assert check_stream(MESSAGE, good) is good
    bad = {
        "no slice": None,
        "no slice on": Instance("alc-1", "Running", {}, DEVICES),
        "not the address": Instance("alc-1", "Running", ready, {"eth0": {"ipv4.address": "10.85.1.11"}}),
        "is stopped": Instance("alc-1", "Stopped", ready, DEVICES),
    }
    for message, instance in bad.items():
        with pytest.raises(PermanentError, match=message):
            check_stream(MESSAGE, instance)


def test_only_a_port_is_dialled() -> None:
    good = Instance("alc-1", "Running", {READY_TAG: "true"}, DEVICES)
    for port in (0, -1, 65_536):
        with pytest.raises(PermanentError, match="is not a port"):
            check_stream(MESSAGE.model_copy(update={"port": port}), good)
    assert check_stream(MESSAGE.model_copy(update={"port": 65_535}), good) is good


async def test_all_bytes_arrive_before_the_end_in_both_directions() -> None:
    """The machine says much and hangs up at once; the other side reads slowly."""
    answer = bytes(range(256)) * 20_000
    question = bytes(reversed(range(256))) * 20_000
    heard: list[bytes] = []

    async def machine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readexactly(len(question)))
        writer.write(answer)
        await writer.drain()
        writer.close()

    received = hashlib.sha256()
    ended = asyncio.Event()

    async def platform(connection: ServerConnection) -> None:
        for start in range(0, len(question), 100_000):
            await connection.send(question[start : start + 100_000])
        async for data in connection:
            assert isinstance(data, bytes)
            await asyncio.sleep(0.001)
            received.update(data)
        assert connection.close_code == 1000
        ended.set()

    port_server = await asyncio.start_server(machine, "127.0.0.1", 0)
    port = port_server.sockets[0].getsockname()[1]
    async with serve(platform, "127.0.0.1", 0) as server:
        where = f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
        async with connect(where, max_queue=4) as connection, asyncio.timeout(60):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            sent, got = await pump(reader, writer, connection)
            writer.close()
        await asyncio.wait_for(ended.wait(), 60)
    port_server.close()
    assert (sent, got) == (len(answer), len(question))
    assert heard == [question]
    assert received.digest() == hashlib.sha256(answer).digest()


@pytest.mark.parametrize("first", ["machine", "platform"])
async def test_one_direction_ends_and_the_other_goes_on(first: str) -> None:
    """An empty message is the end of a direction, whoever ends its own first."""
    heard: list[bytes] = []
    machine_ended = asyncio.Event()

    async def machine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if first == "machine":
            writer.write(b"said first")
            writer.write_eof()
            machine_ended.set()
        heard.append(await reader.read())
        if first == "platform":
            writer.write(b"said last")
        writer.close()

    said: list[bytes | str] = []

    async def platform(connection: ServerConnection) -> None:
        if first == "machine":
            said.extend([await connection.recv(), await connection.recv()])
        for content in (b"a", b"bc", b"", b"nobody hears this"):
            await connection.send(content)
        said.extend([message async for message in connection])

    port_server = await asyncio.start_server(machine, "127.0.0.1", 0)
    port = port_server.sockets[0].getsockname()[1]
    async with serve(platform, "127.0.0.1", 0) as server:
        where = f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
        async with connect(where) as connection, asyncio.timeout(60):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            assert (await pump(reader, writer, connection, half_close=True))[1] == 3
            writer.close()
    port_server.close()
    assert heard == [b"abc"]
    assert said == [b"said first" if first == "machine" else b"said last", b""]


async def test_the_machine_is_let_go_when_the_platform_ends() -> None:
    gone = asyncio.Event()

    async def machine(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        gone.set()
        writer.close()

    async def platform(connection: ServerConnection) -> None:
        await connection.send(b"hello")

    port_server = await asyncio.start_server(machine, "127.0.0.1", 0)
    port = port_server.sockets[0].getsockname()[1]
    async with serve(platform, "127.0.0.1", 0) as server:
        where = f"ws://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
        async with connect(where) as connection, asyncio.timeout(60):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await pump(reader, writer, connection)
            writer.close()
            await gone.wait()
    port_server.close()
