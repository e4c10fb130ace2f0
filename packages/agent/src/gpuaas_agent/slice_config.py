"""Pure: the requests to LXD that a task leads to. Names, tags, devices, files, network rules."""

import errno
import ipaddress
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from gpuaas_agent.errors import PermanentError
from gpuaas_agent.host_key import HostKey
from gpuaas_agent.lxd import Instance, PushedFile
from gpuaas_contract.access import OBSERVER_ID, OBSERVER_LOGIN
from gpuaas_contract.agent_link import (
    MACHINE_ARTIFACTS_PATH,
    CreateSlice,
    HostCertificate,
    ProjectNetwork,
)
from gpuaas_contract.allocations import Shape
from gpuaas_contract.ids import ALLOCATION, is_id

ENVIRONMENT = "user.gpuaas.environment"
ALLOCATION_TAG = "user.gpuaas.allocation"
TASK_TAG = "user.gpuaas.task"
PROJECT_TAG = "user.gpuaas.project"
"""The owner: a project, or a tenant for its own machines."""
BRIDGE_TAG = "user.gpuaas.bridge"
GATEWAY_TAG = "user.gpuaas.gateway_cidr"
HOST_PUBLIC_KEY = "/etc/ssh/ssh_host_ed25519_key.pub"
PEOPLE = "/etc/ssh/gpuaas_people"
PRINCIPALS = "/etc/ssh/gpuaas_principals"
KEYS = "/etc/ssh/gpuaas_keys"
WANTED_PEOPLE = "/etc/ssh/gpuaas_wanted"
LEASES = "/opt/gpuaas/leases"
"""Where a machine sees, read-only, who may log in under a lease."""
LEASE_SCRIPT = "/etc/ssh/gpuaas_leases"
REMOTE_GROUP = "gpuaas-remote"
"""For people whose grant lets sshd listen on the machine for them."""
SSHD_TAG = "user.gpuaas.sshd"
SSHD_VERSION = "2"
"""Of the files that make a slice's sshd ours; an older slice gets them anew."""
READY_TAG = "user.gpuaas.ready"
"""Set last: a slice without it is what an interrupted attempt left, and nobody has used it."""

PENDING_TEMPLATES = "volatile.apply_template"
"""The image's own templates would overwrite our hostname at the first start, unless this is emptied."""

DENIED_CALLS = "".join(f"{call} errno {errno.ENOSYS}\n" for call in ("keyctl", "add_key", "request_key"))
"""The kernel counts and lists keys by user, and root in all slices is one user to it: a slice could use up the keys of
its neighbours. As on a kernel without keyrings, which systemd and sshd can do without."""

DOMAIN = "gpuaas.internal"
LEASE_SOURCE = files("gpuaas_agent").joinpath("leases.sh").read_text()
# Whole strings only: `$` would let a line break at the end pass.
_BRIDGE = re.compile(r"[a-z][a-z0-9-]{0,14}")
_HOSTNAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_IMAGE = re.compile(r"[a-z0-9][a-z0-9._-]{0,62}(/[a-z0-9][a-z0-9._-]{0,62})?")
_LOGIN = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
_PRINCIPAL = re.compile(r"[A-Za-z0-9_.:@/-]{1,200}")


def instance_name(allocation_id: str) -> str:
    """Name the instance by its allocation, so that a second attempt finds what the first one made."""
    if not is_id(allocation_id, ALLOCATION) or not allocation_id.isprintable():
        raise PermanentError(f"{allocation_id!r} is not the id of an allocation")
    return allocation_id.replace("_", "-")


def check_spec(spec: CreateSlice) -> None:
    """Refuse what is not fit to become a path, a file line or an interface name, whoever sent it."""
    instance_name(spec.allocation_id)
    if not _HOSTNAME.fullmatch(spec.hostname):
        raise PermanentError(f"{spec.hostname!r} is not a host name")
    if spec.image is not None and not _IMAGE.fullmatch(spec.image):
        raise PermanentError(f"{spec.image!r} is not the name of an image")
    network = check_network(spec.network)
    try:
        address = ipaddress.IPv4Address(spec.address)
    except ValueError:
        raise PermanentError(f"{spec.address!r} is not an IPv4 address") from None
    inside = network.network
    if address not in inside or address in (inside.network_address, inside.broadcast_address, network.ip):
        raise PermanentError(f"{spec.address} is not a free address of {spec.network.gateway_cidr}")
    check_principals(spec.principals)


def check_principals(principals_of: dict[str, list[str]]) -> None:
    for login, principals in principals_of.items():
        if not _LOGIN.fullmatch(login):
            raise PermanentError(f"{login!r} is not a login name")
        for principal in principals:
            if not _PRINCIPAL.fullmatch(principal):
                raise PermanentError(f"{principal!r} is not a certificate principal")


def check_network(network: ProjectNetwork) -> ipaddress.IPv4Interface:
    if not _BRIDGE.fullmatch(network.bridge):
        raise PermanentError(f"{network.bridge!r} is not the name of a bridge")
    try:
        interface = ipaddress.IPv4Interface(network.gateway_cidr)
    except ValueError:
        raise PermanentError(f"{network.gateway_cidr!r} is not an IPv4 address with a prefix") from None
    if not interface.ip.is_private or not 16 <= interface.network.prefixlen <= 30:
        raise PermanentError(f"{network.gateway_cidr} is not a private network from /16 to /30")
    return interface


def network_of(instance: Instance) -> ProjectNetwork:
    """The bridge as the slice's own record describes it, enough to make it again."""
    return ProjectNetwork(
        owner_id=instance.config[PROJECT_TAG],
        bridge=instance.config[BRIDGE_TAG],
        gateway_cidr=instance.config[GATEWAY_TAG],
    )


def address_of(instance: Instance) -> str:
    return instance.devices["eth0"]["ipv4.address"]


def mac_of(address: str) -> str:
    """Follow from the address: whoever knows the one knows the other, on every host."""
    return ":".join(f"{byte:02x}" for byte in (0x0A, 0x58, *ipaddress.IPv4Address(address).packed))


def acl_body(network: ProjectNetwork, environment: str) -> dict[str, Any]:
    """Machines of one owner reach each other, and nothing else: no other bridge, no host service.

    A second line behind the environment's own firewall, which is enough without it and does not depend on LXD.
    With an ACL attached, LXD rejects what no rule allows; DNS and DHCP are accepted before the rules.
    `ipv4.routing=false` would not do: where `bridge-nf-call-iptables` is on, it also cuts the machines
    of one bridge from each other.
    """
    gateway = check_network(network)
    subnet = str(gateway.network)
    return {
        "name": network.bridge,
        "description": f"GPUaaS {network.owner_id}",
        "config": {ENVIRONMENT: environment, PROJECT_TAG: network.owner_id},
        "egress": [
            {"action": "reject", "destination": f"{gateway.ip}/32", "state": "enabled"},
            {"action": "allow", "destination": subnet, "state": "enabled"},
        ],
        "ingress": [{"action": "allow", "source": subnet, "state": "enabled"}],
    }


def network_body(network: ProjectNetwork, environment: str) -> dict[str, Any]:
    return {
        "name": network.bridge,
        "type": "bridge",
        "description": f"GPUaaS {network.owner_id}",
        "config": {
            "ipv4.address": network.gateway_cidr,
            "ipv4.nat": "false",
            "ipv6.address": "none",
            # Room for a tunnel's header, so that a network can span hosts later; machines take it when they start.
            "bridge.mtu": "1450",
            "bridge.hwaddr": mac_of(str(check_network(network).ip)),
            "security.acls": network.bridge,
            "dns.domain": DOMAIN,
            # Machines register by their own hostname; LXD would only know the instance's name.
            "dns.mode": "dynamic",
            # Names of the project's machines only: questions must not travel on to the host's resolvers.
            "raw.dnsmasq": "no-resolv\nno-hosts",
            ENVIRONMENT: environment,
            PROJECT_TAG: network.owner_id,
        },
    }


def limits(shape: Shape, host_cpus: int, processes_per_cpu: int) -> dict[str, str]:
    return {
        # A shape may ask for more CPUs than the host has, where the operator allows overcommitment.
        "limits.cpu": str(min(shape.cpus, host_cpus)),
        "limits.memory": f"{shape.memory_mib}MiB",
        "limits.processes": str(shape.cpus * processes_per_cpu),
    }


def missing_limits(config: Mapping[str, str], processes_per_cpu: int) -> dict[str, str]:
    """Find what a slice of an earlier version lacks: the number of processes counts at once, the filter of system
    calls from its next start."""
    cpus = config.get("limits.cpu", "")
    wanted = {"limits.processes": str((int(cpus) if cpus.isdigit() else 1) * processes_per_cpu)}
    wanted["security.syscalls.deny"] = DENIED_CALLS
    return {name: value for name, value in wanted.items() if not config.get(name)}


def gpu_device(source: str) -> dict[str, str]:
    """Pass a GPU under its own name: drivers find a device by the number in it."""
    return {"type": "unix-char", "source": source, "path": f"/dev/{Path(source).name}", "mode": "0666"}


def gpu_names(instance: Instance) -> list[str]:
    """The GPUs that a slice has; they are taken away again from the end."""
    return sorted(name for name, device in instance.devices.items() if device.get("type") == "unix-char")


def instance_body(
    spec: CreateSlice,
    *,
    task_id: str,
    environment: str,
    image_alias: str,
    pool: str,
    artifacts_dir: Path,
    gpu_devices: list[str],
    volume_devices: dict[str, dict[str, str]],
    host_cpus: int,
    processes_per_cpu: int,
    leases_dir: Path,
) -> dict[str, Any]:
    devices: dict[str, dict[str, str]] = {
        "root": {"type": "disk", "path": "/", "pool": pool, "size": f"{spec.shape.disk_gib}GiB"},
        "eth0": {
            "type": "nic",
            "name": "eth0",
            "network": spec.network.bridge,
            "ipv4.address": spec.address,
            "hwaddr": mac_of(spec.address),
        },
        "artifacts": {
            "type": "disk",
            "source": str(artifacts_dir),
            "path": MACHINE_ARTIFACTS_PATH,
            "readonly": "true",
        },
        "leases": lease_device(leases_dir),
    }
    devices |= {Path(source).name: gpu_device(source) for source in gpu_devices}
    devices |= volume_devices
    return {
        "name": instance_name(spec.allocation_id),
        "type": "container",
        "source": {"type": "image", "alias": image_alias},
        "profiles": [],
        "config": {
            ENVIRONMENT: environment,
            ALLOCATION_TAG: spec.allocation_id,
            TASK_TAG: task_id,
            PROJECT_TAG: spec.network.owner_id,
            BRIDGE_TAG: spec.network.bridge,
            GATEWAY_TAG: spec.network.gateway_cidr,
            SSHD_TAG: SSHD_VERSION,
            "boot.autostart": "true",
            "security.devlxd": "false",
            "security.syscalls.deny": DENIED_CALLS,
            **limits(spec.shape, host_cpus, processes_per_cpu),
        },
        "devices": devices,
    }


def machine_files(spec: CreateSlice, key: HostKey, certificate: HostCertificate) -> list[PushedFile]:
    """List the files that a slice has before its first start, so that sshd comes up with the boot."""
    pushed = [
        PushedFile("/etc/hostname", f"{spec.hostname}\n", 0o644),
        PushedFile(
            "/etc/hosts",
            "127.0.0.1 localhost\n"
            "::1 localhost ip6-localhost ip6-loopback\n"
            f"{spec.address} {spec.hostname}.{DOMAIN} {spec.hostname}\n",
            0o644,
        ),
        PushedFile("/etc/ssh/ssh_host_ed25519_key", key.private, 0o600),
        PushedFile(HOST_PUBLIC_KEY, f"{key.public}\n", 0o644),
        *sshd_files(),
        *trust_files(certificate),
    ]
    for login, principals in sorted(spec.principals.items()):
        pushed.append(PushedFile(f"{PRINCIPALS}/{login}", principal_lines(login, principals), 0o644))
    return pushed


def lease_device(source: Path) -> dict[str, str]:
    return {"type": "disk", "source": str(source), "path": LEASES, "readonly": "true"}


def sshd_files() -> list[PushedFile]:
    """The files that make sshd ask for leases, and listen for nobody who has no right to it."""
    lines = [f"AuthorizedKeysFile {KEYS}/%u", *lease_lines(LEASE_SCRIPT, LEASES), *forwarding_lines()]
    return [
        PushedFile(LEASE_SCRIPT, LEASE_SOURCE, 0o755),
        PushedFile("/etc/ssh/sshd_config.d/05-gpuaas-keys.conf", "".join(f"{line}\n" for line in lines), 0o644),
    ]


def lease_lines(script: str, directory: str) -> list[str]:
    return [f"AuthorizedPrincipalsCommand {script} ask {directory} %u %i", "AuthorizedPrincipalsCommandUser root"]


def forwarding_lines() -> list[str]:
    """Ports and sockets on the machine are reached from outside (`ssh -L`); the other way round (`ssh -R`) leads out of
    the machine's network. Last in a file: what follows a Match belongs to it."""
    return [
        "AllowTcpForwarding local",
        "AllowStreamLocalForwarding local",
        f"Match Group {REMOTE_GROUP}",
        "    AllowTcpForwarding yes",
        "    AllowStreamLocalForwarding yes",
    ]


def trust_files(certificate: HostCertificate) -> list[PushedFile]:
    """The files that prove the machine, and that name the authorities that it trusts."""
    return [
        PushedFile("/etc/ssh/ssh_host_ed25519_key-cert.pub", f"{certificate.certificate.strip()}\n", 0o644),
        PushedFile("/etc/ssh/gpuaas_user_ca.pub", f"{certificate.user_authority.strip()}\n", 0o644),
    ]


def principal_lines(login: str, principals: list[str]) -> str:
    """Write one line per principal. An observer may run commands and no more: no forwarding, no terminal."""
    options = "restrict " if login == OBSERVER_LOGIN else ""
    return "".join(f"{options}{principal}\n" for principal in principals)


ACCOUNT_LINES = {
    "/etc/passwd": f"{OBSERVER_LOGIN}:x:{OBSERVER_ID}:{OBSERVER_ID}:GPUaaS observer:/:/bin/bash",
    "/etc/group": f"{OBSERVER_LOGIN}:x:{OBSERVER_ID}:",
    "/etc/shadow": f"{OBSERVER_LOGIN}:*:19000:0:99999:7:::",
}
"""The user that observers log in as, whatever image the machine is made from. It has no home of its own."""


def with_line(content: str, line: str) -> str:
    """Append the line, unless its first word is there already."""
    name = line.partition(":")[0]
    if any(known.partition(":")[0] == name for known in content.splitlines()):
        return content
    separator = "" if not content or content.endswith("\n") else "\n"
    return f"{content}{separator}{line}\n"
