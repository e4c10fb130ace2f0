"""Waiting for a machine that boots: sshd has to say its name, however long that takes on a busy host."""

import asyncio

import pytest

from gpuaas_agent import machine_port
from gpuaas_agent.errors import PermanentError


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_port, "FIRST_PATIENCE", 0.02)
    monkeypatch.setattr(machine_port, "BANNER_SECONDS", 0.02)


async def serve(monkeypatch: pytest.MonkeyPatch, banner: bytes, after: float) -> asyncio.Server:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.sleep(after)
        writer.write(banner)
        writer.close()

    server = await asyncio.start_server(greet, "127.0.0.1", 0)
    monkeypatch.setattr(machine_port, "SSH_PORT", server.sockets[0].getsockname()[1])
    return server


async def test_one_that_needs_longer_than_the_first_patience_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async with await serve(monkeypatch, b"SSH-2.0-slow\r\n", 0.3):
        await machine_port.wait_for_sshd("lo", "127.0.0.1", timeout=60)


async def test_somebody_else_on_its_port_is_not_sshd(monkeypatch: pytest.MonkeyPatch) -> None:
    async with await serve(monkeypatch, b"220 mail.example\r\n", 0):
        with pytest.raises(PermanentError, match="within 1 s: it said b'220 mail"):
            await machine_port.wait_for_sshd("lo", "127.0.0.1", timeout=1)
