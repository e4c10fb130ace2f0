"""A local port whose connections go to a port of a member, through the platform."""

import asyncio
import errno
import ipaddress
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpuaas_cli import output
from gpuaas_cli.errors import CONFLICT, FAILURE, CliError

if TYPE_CHECKING:
    from gpuaas_contract.ports import MemberPort
    from gpuaas_sdk.client import GpuaasClient

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class LocalEnd:
    address: str
    port: int
    """0: any that is free."""

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        return ipaddress.ip_address(self.address).is_loopback


Ready = Callable[[LocalEnd], None]
"""Told where it listens, once it does."""


def cannot_listen(end: LocalEnd, error: OSError) -> CliError:
    """Say why a local port cannot be had, and what to do."""
    why = {
        errno.EADDRINUSE: "it is taken; leave out --local-port for a free one",
        errno.EACCES: "ports below 1024 take root; choose a higher one",
        errno.EADDRNOTAVAIL: "this machine does not have that address; see --bind",
    }.get(error.errno or 0, os.strerror(error.errno) if error.errno else str(error))
    return CliError(f"cannot listen on {end}: {why}", CONFLICT if error.errno == errno.EADDRINUSE else FAILURE)


async def forward_through_platform(client: "GpuaasClient", target: "MemberPort", here: LocalEnd, ready: Ready) -> None:
    """Listen until the right to the port ends; whoever calls it ends it by cancelling."""
    over: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    connections = _Connections(client, target, over)
    try:
        server = await asyncio.start_server(connections.serve, here.address, here.port)
    except OSError as error:
        raise cannot_listen(here, error) from None
    async with server:
        ready(LocalEnd(here.address, server.sockets[0].getsockname()[1]))
        await over


class _Connections:
    def __init__(self, client: "GpuaasClient", target: "MemberPort", over: "asyncio.Future[None]") -> None:
        self._client = client
        self._target = target
        self._over = over

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry one connection. What goes wrong with it is said, and the next one may do better, unless the platform
        says that it cannot."""
        from gpuaas_sdk.errors import GpuaasError
        from gpuaas_sdk.streams import forward

        try:
            stream = await self._client.open_port(self._target.member_id, self._target.name)
            await forward(stream, reader, writer)
            if stream.close_reason:
                output.note(f"gpuaas: the platform closed a connection: {output.clean(stream.close_reason)}")
                await self._client.members.port(self._target.member_id, self._target.name)
        except GpuaasError as error:
            self._failed(error)
        except Exception as error:  # noqa: BLE001 - told by the command itself
            self._end(error)
        finally:
            writer.close()

    def _failed(self, error: Exception) -> None:
        from gpuaas_sdk.errors import ApiError

        if isinstance(error, ApiError) and not error.retryable:
            self._end(error)
        else:
            output.note(f"gpuaas: a connection was refused: {output.clean(str(error))}")

    def _end(self, error: Exception) -> None:
        if not self._over.done():
            self._over.set_exception(error)
