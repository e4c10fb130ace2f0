"""Pure: the files of a host that is handed over, and the conditions that it must meet before. Paths, lines, rules."""

import re
from dataclasses import dataclass, field
from pathlib import Path

from gpuaas_agent.errors import PermanentError
from gpuaas_agent.slice_config import (
    LEASE_SOURCE,
    check_principals,
    forwarding_lines,
    instance_name,
    lease_lines,
    principal_lines,
)
from gpuaas_contract.access import PERSON_LOGIN
from gpuaas_contract.agent_link import MACHINE_ARTIFACTS_PATH, HostCertificate, PrepareHost

DROP_IN = Path("/etc/ssh/sshd_config.d/00-gpuaas.conf")
"""First of all: sshd takes the first value that it reads."""
SSH_DIR = Path("/etc/ssh/gpuaas")
HOST_KEY = SSH_DIR / "host_key"
CERTIFICATE = SSH_DIR / "host_key-cert.pub"
USER_AUTHORITY = SSH_DIR / "user_ca.pub"
PRINCIPALS = SSH_DIR / "principals"
KEYS = SSH_DIR / "keys"
PEOPLE = SSH_DIR / "people"
WANTED_PEOPLE = SSH_DIR / "wanted"
LEASES = SSH_DIR / "leases"
LEASE_SCRIPT = SSH_DIR / "lease-principals"
SUDOERS = Path(f"/etc/sudoers.d/{PERSON_LOGIN}")
ARTIFACTS = Path(MACHINE_ARTIFACTS_PATH)
PERSON_ID = 10_000
"""The first uid of the platform's own range, as in every slice."""
OWN_PATHS = (DROP_IN, SSH_DIR, SUDOERS, ARTIFACTS)

_HOST_KEY_PATH = re.compile(r"/[A-Za-z0-9_./-]+")


@dataclass(frozen=True)
class SshdSettings:
    """The effective settings of sshd (`sshd -T`)."""

    port: int
    host_keys: list[str]
    values: dict[str, str] = field(default_factory=dict)

    def get(self, name: str) -> str:
        return self.values.get(name, "none")


def parse_sshd_settings(text: str) -> SshdSettings:
    ports: list[int] = []
    host_keys: list[str] = []
    values: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        match name:
            case "port":
                ports.append(int(value))
            case "hostkey":
                host_keys.append(value)
            case _:
                values.setdefault(name, value)
    if not ports:
        raise PermanentError("cannot take this host: `sshd -T` names no port")
    return SshdSettings(port=ports[0], host_keys=host_keys, values=values)


def check_spec(spec: PrepareHost) -> None:
    """Refuse what is not fit to become a path or a file line, whoever sent it."""
    instance_name(spec.allocation_id)
    check_principals(spec.principals)


def check_sshd(found: SshdSettings) -> None:
    """Refuse a host whose sshd has certificates or lists of its own: ours would replace them."""
    for name in ("trustedusercakeys", "authorizedprincipalsfile", "authorizedprincipalscommand"):
        if found.get(name) != "none":
            raise PermanentError(f"cannot take this host: its sshd has {name} {found.get(name)} already")
    for name in ("allowusers", "allowgroups"):
        if found.get(name) != "none":
            raise PermanentError(f"cannot take this host: its sshd lets only {name} {found.get(name)} in")


def drop_in(allocation_id: str, found: SshdSettings) -> str:
    """Write sshd's drop-in. Once one host key is named, only named ones count: those of sshd stay, and stay first."""
    keys = [path for path in found.host_keys if _HOST_KEY_PATH.fullmatch(path)]
    lines = [
        f"# GPUaaS: this machine is handed over as {allocation_id}. The agent removes this file when it is given back.",
        *(f"HostKey {path}" for path in keys),
        f"HostKey {HOST_KEY}",
        f"HostCertificate {CERTIFICATE}",
        f"TrustedUserCAKeys {USER_AUTHORITY}",
        f"AuthorizedPrincipalsFile {PRINCIPALS}/%u",
        f"AuthorizedKeysFile {found.get('authorizedkeysfile').replace('none', '')} {KEYS}/%u",
        "MaxSessions 64",
        "MaxStartups 64:30:128",
    ]
    if found.get("permitrootlogin") in ("no", "forced-commands-only"):
        lines.append("PermitRootLogin prohibit-password")
    lines += ending_lines()
    return "".join(f"{line}\n" for line in lines)


def ending_lines() -> list[str]:
    """The lines of the drop-in that a host which an older agent handed over does not have yet."""
    return [*lease_lines(str(LEASE_SCRIPT), str(LEASES)), *forwarding_lines()]


@dataclass(frozen=True)
class HostFile:
    path: Path
    content: str
    mode: int


def trust_files(certificate: HostCertificate) -> list[HostFile]:
    """The files that prove the host, and that name the authorities that it trusts."""
    return [
        HostFile(CERTIFICATE, f"{certificate.certificate.strip()}\n", 0o644),
        HostFile(USER_AUTHORITY, f"{certificate.user_authority.strip()}\n", 0o644),
    ]


def host_files(spec: PrepareHost, private_key: str, certificate: HostCertificate) -> list[HostFile]:
    """List all files but the drop-in, which is written last: until then sshd does not read them."""
    files = [
        HostFile(SUDOERS, f"{PERSON_LOGIN} ALL=(ALL) NOPASSWD: ALL\n", 0o440),
        HostFile(HOST_KEY, private_key, 0o600),
        HostFile(LEASE_SCRIPT, LEASE_SOURCE, 0o755),
        *trust_files(certificate),
    ]
    for login, principals in sorted(spec.principals.items()):
        files.append(HostFile(PRINCIPALS / login, principal_lines(login, principals), 0o644))
    return files
