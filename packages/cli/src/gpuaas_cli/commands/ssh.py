"""SSH to a machine: OpenSSH itself, with a certificate for minutes and a verified host."""

import os
import shlex
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from gpuaas_cli import resolve
from gpuaas_cli.errors import NOT_FOUND, CliError
from gpuaas_cli.options import DEFAULTS, Options
from gpuaas_cli.session import Session, open_session

if TYPE_CHECKING:
    from gpuaas_contract.access import AccessGrant
    from gpuaas_contract.allocations import Allocation


async def ssh(
    target: Annotated[str, Parameter(help="An allocation or an instance, by name or id.")],
    *command: Annotated[str, Parameter(allow_leading_hyphen=True, help="What to run there; a shell where absent.")],
    options: Options = DEFAULTS,
) -> int:
    """Log in to a machine, or run a command on it. The exit code is that of the command.

    An instance means the machine of its primary component.

    ```
    gpuaas ssh one
    gpuaas ssh first -- uptime
    ```
    """
    async with open_session(options) as session:
        machine = await _find_machine(session, target)
        with tempfile.TemporaryDirectory(prefix="gpuaas-ssh-") as name:
            directory = Path(name)
            public_key = _make_key(directory)
            grant = await session.client.allocations.access(machine.id, public_key)
            arguments = _ssh_arguments(directory, grant, machine.id)
            environment = {
                **os.environ,
                # The proxy is us again, in ssh's hands: who we are goes along in its environment.
                "GPUAAS_API_URL": session.target.api_url,
                "GPUAAS_TOKEN": await session.client.token(),
            }
            return _run([*arguments, *command], environment)


async def _find_machine(session: Session, target: str) -> "Allocation":
    from gpuaas_contract import ids

    if not ids.is_id(target, ids.INSTANCE):
        try:
            return await resolve.allocation(session, target)
        except CliError:
            if ids.is_id(target, ids.ALLOCATION):
                raise
    try:
        instance = await resolve.instance(session, target)
    except CliError:
        raise CliError(f"there is no allocation and no instance {target!r}", NOT_FOUND) from None
    version = await session.client.app_versions.get(instance.app_slug, instance.versions.app)
    primary = version.manifest.primary.key
    async for member in session.client.instances.members(instance.id):
        if member.component_key == primary and member.status != "removed":
            return await session.client.allocations.get(member.allocation_id)
    raise CliError(f"{instance.name} is {instance.status} and has no machine to log in to", NOT_FOUND)


def _make_key(directory: Path) -> str:
    key = directory / "key"
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(key)], check=True, stdin=subprocess.DEVNULL
    )
    return (directory / "key.pub").read_text().strip()


def _ssh_arguments(directory: Path, grant: "AccessGrant", allocation_id: str) -> list[str]:
    machine = next(m for m in grant.machines if m.allocation_id == allocation_id)
    (directory / "key-cert.pub").write_text(grant.certificate + "\n")
    hosts = directory / "known_hosts"
    hosts.write_text(f"@cert-authority {machine.host_principal} {grant.host_authority}\n")
    proxy = shlex.join([sys.executable, "-m", "gpuaas_cli.ssh_proxy", grant.id, allocation_id])
    settings = {
        "ProxyCommand": proxy.replace("%", "%%"),
        "IdentityFile": directory / "key",
        "CertificateFile": directory / "key-cert.pub",
        "IdentitiesOnly": "yes",
        "HostKeyAlias": machine.host_principal,
        "UserKnownHostsFile": hosts,
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
        "LogLevel": "ERROR",
    }
    flags = [part for key, value in settings.items() for part in ("-o", f"{key}={value}")]
    # The user's own configuration could weaken the verification of the host: it has no say here.
    return ["ssh", "-F", "/dev/null", *flags, "-l", grant.login, "--", machine.hostname]


def _run(arguments: list[str], environment: dict[str, str]) -> int:
    """Ctrl-C belongs to what runs on the machine. What ends us ends ssh first: we stay to remove the key."""
    try:
        process = subprocess.Popen(arguments, env=environment)
    except FileNotFoundError:
        raise CliError("ssh is not installed", hint="apt-get install openssh-client") from None
    previous = {signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN)}
    for number in (signal.SIGTERM, signal.SIGHUP):
        previous[number] = signal.signal(number, lambda *_: process.terminate())
    try:
        return process.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
