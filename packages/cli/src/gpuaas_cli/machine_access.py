"""Find a machine by name or id, and configure OpenSSH to reach it."""

import shlex
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from gpuaas_cli import resolve
from gpuaas_cli.errors import NOT_FOUND, USAGE, CliError
from gpuaas_cli.session import Session

if TYPE_CHECKING:
    from gpuaas_contract.access import AccessGrant, MachineAddress


async def find_machine(session: Session, target: str) -> str:
    """Return an allocation's id: found by id or name, by its instance, or by the caller's own grants in any project."""
    from gpuaas_contract import ids

    if ids.is_id(target, ids.ALLOCATION):
        return target
    if not ids.is_id(target, ids.INSTANCE):
        named = await _find_named(session, target) or await _find_granted(session, target)
        if named is not None:
            return named
    return await _find_entrance(session, target)


async def _find_named(session: Session, name: str) -> str | None:
    """Find a live machine in the chosen project, or the only one of that name in all projects, with one request."""
    project_id = await session.project_id() if session.target.project is not None else None
    found = await session.client.allocations.list(project_id=project_id, name=name).all()
    live = [machine for machine in found if machine.status != "released"]
    if len(live) > 1:
        raise CliError(f"several projects have a machine named {name!r}", USAGE, hint="--project NAME")
    return live[0].id if live else None


async def _find_granted(session: Session, name: str) -> str | None:
    found = [grant.allocation_id async for grant in session.client.grants.own() if grant.allocation_name == name]
    if len(found) > 1:
        raise CliError(f"you have grants on several machines named {name!r}", NOT_FOUND, hint="gpuaas grant list --own")
    return found[0] if found else None


async def _find_entrance(session: Session, target: str) -> str:
    """Return the machine of an instance's primary component."""
    try:
        instance = await resolve.instance(session, target)
    except CliError:
        raise CliError(f"no machine and no instance is named {target!r}", NOT_FOUND) from None
    version = await session.client.app_versions.get(instance.app_slug, instance.versions.app)
    primary = version.manifest.primary.key
    async for member in session.client.instances.members(instance.id):
        if member.component_key == primary and member.status != "removed":
            return member.allocation_id
    raise CliError(f"instance {instance.name} is {instance.status}: it has no machine to log in to", NOT_FOUND)


def make_key(directory: Path) -> str:
    key = directory / "key"
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(key)]
    subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
    return (directory / "key.pub").read_text().strip()


def machine_of(access: "AccessGrant", allocation_id: str) -> "MachineAddress":
    return next(machine for machine in access.machines if machine.allocation_id == allocation_id)


def write_certificate(directory: Path, access: "AccessGrant", allocation_id: str, name: str = "key") -> None:
    """Write the certificate beside the key, and a known_hosts file that trusts the project's authority only."""
    (directory / f"{name}-cert.pub").write_text(access.certificate + "\n")
    machine = machine_of(access, allocation_id)
    keys = access.host_authority.splitlines()
    believed = "".join(f"@cert-authority {machine.host_principal} {key}\n" for key in keys)
    (directory / f"{name}-known_hosts").write_text(believed)


def proxy_command(*arguments: str) -> str:
    """Return the ProxyCommand: this program again, started by ssh."""
    return shlex.join([sys.executable, "-m", "gpuaas_cli.ssh_proxy", *arguments]).replace("%", "%%")


def ssh_settings(
    directory: Path, access: "AccessGrant", allocation_id: str, *, name: str = "key", proxy: str | None
) -> Mapping[str, object]:
    machine = machine_of(access, allocation_id)
    settings = {
        "HostName": machine.address if proxy is None else machine.hostname,
        "User": access.login,
        "IdentityFile": directory / "key",
        "CertificateFile": directory / f"{name}-cert.pub",
        "HostKeyAlias": machine.host_principal,
        "UserKnownHostsFile": directory / f"{name}-known_hosts",
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "PasswordAuthentication": "no",
        "KbdInteractiveAuthentication": "no",
    }
    return settings if proxy is None else {"ProxyCommand": proxy, **settings}
