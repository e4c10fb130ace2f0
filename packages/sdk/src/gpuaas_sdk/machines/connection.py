"""One SSH connection to a machine that proved who it is: over a byte stream of the platform, or straight to it."""

import asyncio
import shlex
import socket
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, suppress
from dataclasses import dataclass
from typing import cast

import asyncssh

from gpuaas_contract.access import OPERATOR_LOGIN, AccessGrant, DirectAccess, MachineAddress
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.errors import TransportError
from gpuaas_sdk.streams import ByteStream, pump

LOGIN_SECONDS = 15
KEEPALIVE_SECONDS = 5
SESSIONS = 8
"""sshd allows ten at a time on one connection unless it is told otherwise."""
Pieces = Callable[[], AsyncGenerator[bytes]]
"""Content that is too large to be held: read anew for each time that it is sent."""


def trusted_hosts(grant: AccessGrant, machine: MachineAddress) -> asyncssh.SSHKnownHosts:
    """Nothing but a certificate of the grant's authority for exactly this machine is believed."""
    lines = [f"@cert-authority {machine.host_principal} {key}\n" for key in grant.host_authority.splitlines()]
    return asyncssh.import_known_hosts("".join(lines))


@dataclass(frozen=True, slots=True)
class Answer:
    exit_status: int
    stdout: bytes
    stderr: bytes


class MachineConnection:
    def __init__(
        self,
        ssh: asyncssh.SSHClientConnection,
        stream: ByteStream | None = None,
        carrier: "asyncio.Task[None] | None" = None,
        *,
        through_sudo: bool = False,
    ) -> None:
        self._ssh = ssh
        self._stream = stream
        self._carrier = carrier
        self._through_sudo = through_sudo
        self._sessions = asyncio.Semaphore(SESSIONS)
        self._users = 0
        self._retired = False

    @property
    def is_open(self) -> bool:
        return not self._retired and not self._ssh.is_closed()

    async def run(self, command: str, content: bytes | Pieces) -> Answer:
        """Raises TransportError where the connection ended before the command did."""
        if self._through_sudo:
            command = f"sudo -n -- sh -c {shlex.quote(command)}"
        self._users += 1
        try:
            async with self._sessions:
                if isinstance(content, bytes):
                    done = await self._ssh.run(command, input=content, encoding=None, check=False)
                else:
                    done = await self._run_with(command, content())
        except (asyncssh.Error, OSError) as error:
            raise TransportError(f"the connection was cut: {self._reason(error)}") from error
        finally:
            self._users -= 1
            if self._retired and self._users == 0:
                self._ssh.close()
        if done.returncode is None:
            raise TransportError(f"the connection was cut: {self._reason(None)}")
        # Without an encoding both are bytes; asyncssh's types cannot say so.
        return Answer(done.returncode, cast(bytes, done.stdout or b""), cast(bytes, done.stderr or b""))

    async def _run_with(self, command: str, content: AsyncGenerator[bytes]) -> asyncssh.SSHCompletedProcess:
        async with aclosing(content) as pieces, self._ssh.create_process(command, encoding=None) as process:
            async for piece in pieces:
                try:
                    process.stdin.write(piece)
                    await process.stdin.drain()
                except (asyncssh.Error, OSError):
                    # It ended before it had heard all, or the connection did: how it ended says which.
                    break
            with suppress(asyncssh.Error, OSError):
                process.stdin.write_eof()
            return await process.wait()

    def _reason(self, error: Exception | None) -> str:
        said = self._stream.close_reason if self._stream is not None else ""
        return said or str(error or "") or "no reason was given"

    def retire(self) -> None:
        """Take no new commands; close when the running ones are done."""
        self._retired = True
        if self._users == 0:
            self._ssh.close()

    async def close(self) -> None:
        self._retired = True
        self._ssh.abort()
        if self._carrier is not None:
            self._carrier.cancel()
            await asyncio.gather(self._carrier, return_exceptions=True)


async def connect_directly(address: str, direct: DirectAccess, key: asyncssh.SSHKey) -> MachineConnection:
    """To an external machine: exactly one host key is believed, the one that was given when it was made known."""
    ssh = await asyncssh.connect(
        address,
        port=direct.port,
        username=direct.login,
        client_keys=[key],
        known_hosts=([asyncssh.import_public_key(direct.host_key)], [], []),
        config=None,
        agent_path=None,
        preferred_auth="publickey",
        connect_timeout=LOGIN_SECONDS,
        login_timeout=LOGIN_SECONDS,
        keepalive_interval=KEEPALIVE_SECONDS,
        keepalive_count_max=3,
        compression_algs=None,
    )
    return MachineConnection(ssh, through_sudo=direct.login != OPERATOR_LOGIN)


async def open_connection(
    client: GpuaasClient,
    grant: AccessGrant,
    machine: MachineAddress,
    key: asyncssh.SSHKey,
    *,
    stored: bool = False,
) -> MachineConnection:
    """With the grant's certificate for the key; `stored`: the key itself is what the machine knows."""
    stream = await client.open_stream(grant.id, machine.allocation_id)
    return await connect_over(stream, grant, machine, key, stored=stored)


async def connect_over(
    stream: ByteStream, grant: AccessGrant, machine: MachineAddress, key: asyncssh.SSHKey, *, stored: bool = False
) -> MachineConnection:
    """asyncssh wants a socket: give it one end of a pair and join the other end with the stream."""
    proof = key if stored else (key, asyncssh.import_certificate(grant.certificate))
    ours, theirs = socket.socketpair()
    carrier = asyncio.create_task(_carry(stream, theirs))
    try:
        ssh = await asyncssh.connect(
            machine.host_principal,
            sock=ours,
            username=grant.login,
            client_keys=[proof],
            known_hosts=trusted_hosts(grant, machine),
            # The caller's own files and agents have no say in this.
            config=None,
            agent_path=None,
            preferred_auth="publickey",
            login_timeout=LOGIN_SECONDS,
            keepalive_interval=KEEPALIVE_SECONDS,
            keepalive_count_max=3,
            compression_algs=None,
        )
    except BaseException:
        # asyncssh has closed its end of the pair.
        carrier.cancel()
        await asyncio.gather(carrier, return_exceptions=True)
        raise
    return MachineConnection(ssh, stream, carrier)


async def _carry(stream: ByteStream, end: socket.socket) -> None:
    reader, writer = await asyncio.open_connection(sock=end)
    await pump(stream, reader, writer)
