"""A local port whose connections go to a port of an external machine, over SSH.

The platform has no agent on such a machine and no key for people: ssh runs here, with the keys of its user, and neither
counts nor ends with rights on the platform. Only the machine's host key comes from the platform; no other is believed.
"""

import asyncio
import shutil
import socket
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from gpuaas_cli import output
from gpuaas_cli.errors import CliError
from gpuaas_cli.forwarding import LocalEnd, Ready, cannot_listen
from gpuaas_contract.access import PERSON_LOGIN

if TYPE_CHECKING:
    from gpuaas_contract.allocations import Allocation
    from gpuaas_contract.external import ExternalMachine
    from gpuaas_contract.ports import MemberPort

_READY = "ready"


async def forward_over_ssh(
    machine: "Allocation", target: "MemberPort", here: LocalEnd, login: str | None, ready: Ready
) -> int:
    external = machine.shape.external
    if external is None:
        raise CliError(f"{machine.name} has no agent and no address: nothing leads there")
    if shutil.which("ssh") is None:
        raise CliError("ssh is not installed", hint="apt-get install openssh-client")
    end = take_port(here)
    output.note(
        f"{machine.name} is an external machine: ssh runs with a key of your own, and the platform counts nothing."
    )
    with tempfile.TemporaryDirectory(prefix="gpuaas-tunnel-") as directory:
        hosts = Path(directory) / "known_hosts"
        hosts.write_text(f"{machine.id} {external.host_key}\n")
        words = ssh_words(machine.id, external, target.number, end, login or PERSON_LOGIN, hosts)
        process = await asyncio.create_subprocess_exec(*words, stdout=asyncio.subprocess.PIPE)
        assert process.stdout is not None
        try:
            if (await process.stdout.readline()).decode().strip() == _READY:
                ready(end)
            code = await process.wait()
        finally:
            if process.returncode is None:
                process.terminate()
                await process.wait()
    return code


def ssh_words(
    alias: str, external: "ExternalMachine", number: int, end: LocalEnd, login: str, hosts: Path
) -> list[str]:
    settings = {
        "HostKeyAlias": alias,
        "UserKnownHostsFile": hosts,
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "ExitOnForwardFailure": "yes",
        "ServerAliveInterval": 15,
        "PermitLocalCommand": "yes",
        # Runs when the port is forwarded.
        "LocalCommand": f"echo {_READY}",
        "LogLevel": "ERROR",
    }
    flags = [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]
    forwarded = f"[{end.address}]:{end.port}:localhost:{number}"
    return ["ssh", "-N", *flags, "-L", forwarded, "-p", str(external.port), "-l", login, "--", external.address]


def take_port(here: LocalEnd) -> LocalEnd:
    """Find a free port, or see that the wanted one is free: ssh would say it later, and less clearly."""
    family = socket.AF_INET6 if ":" in here.address else socket.AF_INET
    with socket.socket(family) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((here.address, here.port))
        except OSError as error:
            raise cannot_listen(here, error) from None
        return LocalEnd(here.address, probe.getsockname()[1])
