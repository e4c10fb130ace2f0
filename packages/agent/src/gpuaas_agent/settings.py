"""Settings of one agent, from its environment."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Network
from pathlib import Path

from gpuaas_agent.errors import PermanentError
from gpuaas_contract.access import LEASE_CERTIFICATE_SECONDS
from gpuaas_contract.agent_link import HEARTBEAT_SECONDS, OFFLINE_AFTER_SECONDS
from gpuaas_contract.trust import TrustError, client_context

PATIENCE_SECONDS = LEASE_CERTIFICATE_SECONDS - OFFLINE_AFTER_SECONDS - HEARTBEAT_SECONDS
"""Without a link for so long, nobody is let in any more. It takes the difference to notice that a link is dead."""
_ENVIRONMENT = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")


class Hosting(StrEnum):
    SLICES = "slices"
    HOST = "host"
    """The machine itself is handed over, to one allocation at a time; LXD is not needed."""


@dataclass(frozen=True)
class Settings:
    api_url: str
    state_dir: Path
    environment: str
    """Tag on every object that the agent makes: one LXD may serve several environments."""
    storage_pool: str
    """Empty where the host itself is handed over."""
    hosting: Hosting = Hosting.SLICES
    join_token_file: Path | None = None
    lxd_socket: Path = Path("/var/lib/lxd/unix.socket")
    image_alias: str = "gpuaas/debian-12"
    gpu_devices: str = "/dev/nvidia[0-9]*"
    cpu_overcommit: float = 1.0
    artifact_cache_gib: float = 20.0
    processes_per_cpu: int = 2048
    network_range: IPv4Network | None = None
    """The platform's range: closed as a whole, also while no bridge of it is known."""
    network_check_seconds: float = 2.0
    lease_patience_seconds: float = PATIENCE_SECONDS
    """Without a link for so long, nobody is let in under a lease any more."""
    ca_file: Path | None = None
    """Authorities that are trusted beside those of the machine."""

    @property
    def artifact_cache(self) -> Path:
        return self.state_dir / "artifacts"

    @property
    def artifact_cache_bytes(self) -> int:
        return int(self.artifact_cache_gib * (1 << 30))

    @property
    def slices_dir(self) -> Path:
        return self.state_dir / "slices"


HELP = """\
environment:
  GPUAAS_API_URL           address of the platform, for example https://gpuaas.example (required)
  GPUAAS_CA_FILE           PEM file of an authority to trust for https, beside those of the machine
  GPUAAS_AGENT_STATE_DIR   directory for the node's key, artifact cache and slices (required)
  GPUAAS_ENVIRONMENT       tag on every LXD object of this agent, for example demo (required)
  GPUAAS_STORAGE_POOL      LXD storage pool for the slices (required for slices)
  GPUAAS_AGENT_HOSTING     slices (default), or host: the machine itself is handed over as a whole
  GPUAAS_JOIN_TOKEN_FILE   file with a join token; needed until the node is enrolled
  GPUAAS_LXD_SOCKET        default /var/lib/lxd/unix.socket
  GPUAAS_IMAGE_ALIAS       default gpuaas/debian-12
  GPUAAS_GPU_DEVICES       glob of the host's GPU devices, default /dev/nvidia[0-9]*
  GPUAAS_CPU_OVERCOMMIT    how many CPUs to offer per CPU of the host, default 1
  GPUAAS_PROCESSES_PER_CPU processes and threads that a slice may have per CPU of its shape, default 2048
  GPUAAS_ARTIFACT_CACHE_GIB  artifacts that no slice has are forgotten past this size, default 20
  GPUAAS_NETWORK_RANGE     the platform's range of addresses, for example 10.83.0.0/16: the node's firewall closes all
                           of it, also while no bridge of it is known; without it, only the known bridges
  GPUAAS_NETWORK_CHECK_SECONDS  how often firewall and bridges are compared with what is wanted, default 2
  GPUAAS_LEASE_PATIENCE_SECONDS  without a link to the platform for so long, machines let nobody in under a lease any
                           more; default and most 100, after which a certificate is worth nothing by itself
"""


def read_settings(environ: Mapping[str, str]) -> Settings:
    hosting = environ.get("GPUAAS_AGENT_HOSTING") or Hosting.SLICES
    if hosting not in set(Hosting):
        raise PermanentError(f"cannot start: GPUAAS_AGENT_HOSTING is {hosting!r}, neither slices nor host")
    required = ["GPUAAS_API_URL", "GPUAAS_AGENT_STATE_DIR", "GPUAAS_ENVIRONMENT"]
    if hosting == Hosting.SLICES:
        required.append("GPUAAS_STORAGE_POOL")
    missing = [name for name in required if not environ.get(name)]
    if missing:
        raise PermanentError(f"cannot start: {', '.join(missing)} not set (see gpuaas-agent --help)")
    api_url = environ["GPUAAS_API_URL"].rstrip("/")
    if not api_url.startswith(("http://", "https://")):
        raise PermanentError(f"cannot start: GPUAAS_API_URL is {api_url!r}, not an http or https address")
    environment = environ["GPUAAS_ENVIRONMENT"]
    if not _ENVIRONMENT.fullmatch(environment):
        raise PermanentError(
            f"cannot start: GPUAAS_ENVIRONMENT is {environment!r}; use small letters, digits and dashes"
        )
    token_file = environ.get("GPUAAS_JOIN_TOKEN_FILE")
    ca_file = environ.get("GPUAAS_CA_FILE")
    return Settings(
        api_url=api_url,
        state_dir=Path(environ["GPUAAS_AGENT_STATE_DIR"]).absolute(),
        environment=environment,
        storage_pool=environ.get("GPUAAS_STORAGE_POOL", ""),
        hosting=Hosting(hosting),
        join_token_file=Path(token_file) if token_file else None,
        lxd_socket=Path(environ.get("GPUAAS_LXD_SOCKET", Settings.lxd_socket)),
        image_alias=environ.get("GPUAAS_IMAGE_ALIAS", Settings.image_alias),
        gpu_devices=environ.get("GPUAAS_GPU_DEVICES", Settings.gpu_devices),
        cpu_overcommit=_number(environ, "GPUAAS_CPU_OVERCOMMIT", "1", 0.1, 64),
        artifact_cache_gib=_number(environ, "GPUAAS_ARTIFACT_CACHE_GIB", "20", 0, 1_000_000),
        processes_per_cpu=_whole(environ, "GPUAAS_PROCESSES_PER_CPU", "2048", 256, 65_536),
        network_range=_range(environ, "GPUAAS_NETWORK_RANGE"),
        network_check_seconds=_number(environ, "GPUAAS_NETWORK_CHECK_SECONDS", "2", 0.1, 60),
        lease_patience_seconds=_number(
            environ, "GPUAAS_LEASE_PATIENCE_SECONDS", str(PATIENCE_SECONDS), 0.1, PATIENCE_SECONDS
        ),
        ca_file=_readable(Path(ca_file).absolute(), "GPUAAS_CA_FILE") if ca_file else None,
    )


def _whole(environ: Mapping[str, str], name: str, default: str, least: int, most: int) -> int:
    number = _number(environ, name, default, least, most)
    if not number.is_integer():
        raise PermanentError(f"cannot start: {name} is {environ[name]!r}, not a whole number")
    return int(number)


def _range(environ: Mapping[str, str], name: str) -> IPv4Network | None:
    text = environ.get(name)
    if not text:
        return None
    try:
        found = IPv4Network(text)
    except ValueError as error:
        raise PermanentError(f"cannot start: {name} is {text!r}, not a network such as 10.83.0.0/16: {error}") from None
    if not found.is_private or not 8 <= found.prefixlen <= 30:
        raise PermanentError(f"cannot start: {name} is {text!r}, not a private network from /8 to /30")
    return found


def _readable(path: Path, name: str) -> Path:
    try:
        client_context("https:", path)
    except TrustError as error:
        raise PermanentError(f"cannot start: {name} is wrong: {error}") from None
    return path


def _number(environ: Mapping[str, str], name: str, default: str, least: float, most: float) -> float:
    text = environ.get(name, default)
    try:
        number = float(text)
    except ValueError:
        number = least - 1
    if not least <= number <= most:
        raise PermanentError(f"cannot start: {name} is {text!r}, not a number from {least:g} to {most:g}")
    return number
