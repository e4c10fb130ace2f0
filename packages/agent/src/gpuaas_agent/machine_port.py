"""Connections from the host to a port of one of its slices."""

import asyncio
import socket

from gpuaas_agent.errors import PermanentError

READ_LIMIT = 256 * 1024
SSH_PORT = 22
FIRST_PATIENCE = 0.3
"""Short, because a first packet that waits for ARP of a machine that still boots is not sent again soon."""
BANNER_SECONDS = 2.0
LONGEST_PATIENCE = 10.0
"""On a host that is busy starting many machines, a healthy sshd may take seconds to say its name."""


def check_port(port: int) -> None:
    if not 1 <= port <= 65_535:
        raise PermanentError(f"{port} is not a port")


async def open_machine_port(
    bridge: str, address: str, port: int, *, timeout: float
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Connect, bound to the bridge: were it missing, no packet may leave the host by another way."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, bridge.encode() + b"\0")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        async with asyncio.timeout(timeout):
            await asyncio.get_running_loop().sock_connect(sock, (address, port))
        return await asyncio.open_connection(sock=sock, limit=READ_LIMIT)
    except BaseException:
        sock.close()
        raise


async def wait_for_sshd(bridge: str, address: str, *, timeout: float) -> None:
    """Wait until sshd sends its banner; an open port alone may be anything."""
    deadline = asyncio.get_running_loop().time() + timeout
    last, patience = "no attempt was made", FIRST_PATIENCE
    while asyncio.get_running_loop().time() < deadline:
        try:
            banner = await _read_banner(bridge, address, patience)
            if banner.startswith(b"SSH-2.0-"):
                return
            last = f"it said {banner[:40]!r}"
        except TimeoutError:
            last, patience = "no answer", min(patience * 1.2, LONGEST_PATIENCE)
        except OSError as error:
            last = str(error)
        await asyncio.sleep(0.03)
    raise PermanentError(f"sshd did not answer on {address}:{SSH_PORT} within {timeout:.0f} s: {last}")


async def _read_banner(bridge: str, address: str, patience: float) -> bytes:
    reader, writer = await open_machine_port(bridge, address, SSH_PORT, timeout=patience)
    try:
        async with asyncio.timeout(max(patience, BANNER_SECONDS)):
            return await reader.readline()
    finally:
        writer.close()
