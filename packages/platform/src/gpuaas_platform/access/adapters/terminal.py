"""A shell on a machine over SSH, for those who cannot speak SSH themselves: the platform is the client."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import asyncssh

from gpuaas_contract.problems import Code
from gpuaas_platform.core.errors import Refusal

LOGIN_SECONDS = 15
TERMINAL = "xterm-256color"


@dataclass(frozen=True, slots=True)
class ShellLogin:
    """The key and certificate that open a machine, and the authorities that prove which machine it is."""

    host_principal: str
    login: str
    key: asyncssh.SSHKey
    certificate: str
    host_authorities: list[str]


def make_key() -> asyncssh.SSHKey:
    """For one session; it is never written anywhere."""
    return asyncssh.generate_private_key("ssh-ed25519")


@asynccontextmanager
async def open_shell(
    end: socket.socket, how: ShellLogin, size: tuple[int, int]
) -> AsyncIterator["asyncssh.SSHClientProcess[bytes]"]:
    """A login shell in a terminal of that many columns and rows. The socket leads to the machine's sshd."""
    believed = "".join(f"@cert-authority {how.host_principal} {line}\n" for line in how.host_authorities)
    try:
        async with asyncio.timeout(LOGIN_SECONDS):
            connection = await asyncssh.connect(
                how.host_principal,
                sock=end,
                username=how.login,
                client_keys=[(how.key, asyncssh.import_certificate(how.certificate))],
                known_hosts=asyncssh.import_known_hosts(believed),
                config=None,
                agent_path=None,
                preferred_auth="publickey",
                compression_algs=None,
            )
            process: asyncssh.SSHClientProcess[bytes] = await connection.create_process(
                term_type=TERMINAL, term_size=size, encoding=None
            )
    except (asyncssh.Error, OSError, TimeoutError) as error:
        detail = f"the machine does not let the terminal in: {str(error) or 'no answer'}"
        raise Refusal(Code.UNAVAILABLE, detail, retry_after=2) from error
    try:
        yield process
    finally:
        connection.abort()
