"""Everything that can be chosen about one stack on one machine, each by one GPUAAS_… variable."""

from __future__ import annotations

import socket
from ipaddress import IPv4Network
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from gpuaas_contract.proxies import read_proxies
from gpuaas_contract.trust import is_loopback, parse_certificate_pair
from gpuaas_stack.gpus import stand_in_dir

ENVIRONMENT_TAG = "user.gpuaas.environment"
OFF, EMBEDDED = "off", "embedded"
ANY_ADDRESS = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - how to reach what listens there
HOST_NAME = r"^[A-Za-z0-9]([A-Za-z0-9.:-]{0,251}[A-Za-z0-9])?$"


def _default_app_dirs() -> tuple[Path, ...]:
    # In a checkout the apps lie beside the stack; an installed stack is told where they are.
    beside = Path(__file__).resolve().parents[3] / "apps"
    return (beside,) if beside.is_dir() else ()


class Settings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="GPUAAS_", extra="ignore", frozen=True)

    state_dir: Path = Path("/var/lib/gpuaas")
    environment: str = Field("demo", pattern=r"^[a-z][a-z0-9-]{0,15}$")

    api_host: str = "127.0.0.1"
    api_port: int = 8470
    api_name: str | None = Field(
        None, pattern=HOST_NAME, description="the name by which clients reach the API, where it is not GPUAAS_API_HOST"
    )
    public_url: str | None = Field(None, description="the API's address for people, behind a proxy")
    trusted_proxies: str = Field(
        "", description="networks of proxies, separated by commas, whose X-Forwarded-… headers the API believes"
    )
    tls: str = Field(
        OFF, description="off, embedded (an authority of the stack's own), or /path/cert.pem:/path/key.pem: HTTPS"
    )
    ca_file: Path | None = Field(None, description="the authority of that certificate, where the machine trusts it not")
    postgres_port: int = 8471
    openbao_port: int = 8472
    openbao_cluster_port: int = 8473
    registry_port: int = 8474

    database_url: SecretStr | None = Field(None, description="use this server; no PostgreSQL is started")
    vault_addr: str | None = Field(None, description="use this OpenBao or Vault; none is started")
    vault_token_file: Path | None = None
    registry_url: str | None = Field(None, description="use this OCI registry for artifacts; none is started")

    artifact_largest_gib: float = Field(100, gt=0, le=1024, description="the largest file that becomes an artifact")
    artifact_owner_gib: float = Field(200, ge=0, allow_inf_nan=False, description="of one app or project")
    registry_total_gib: float = Field(1000, ge=0, allow_inf_nan=False, description="of all artifacts")
    registry_reserve_gib: float = Field(
        4, ge=0, le=1_000_000, description="free on the registry's disk, else it takes no pushes"
    )

    subnet: IPv4Network = IPv4Network("10.83.0.0/16")
    terminal_idle_seconds: float = Field(900, description="a browser terminal in which nobody types is closed then")
    pool_size: str = Field("30GiB", description="size of the loop file that slices live on; sparse")
    lxd_socket: Path = Path("/var/lib/lxd/unix.socket")
    lxd_run_dir: Path = Path("/run/gpuaas/lxd")
    lxd_network: str | None = Field(
        None, description="network namespace in which LXD and the agent run, beside those of the machine itself"
    )
    image_cache: Path = Path("/var/cache/gpuaas/images")
    image_alias: str = "gpuaas/debian-12"
    gpu_stand_ins: int = Field(4, description="character devices that stand for GPUs where there are none")

    longest_pause: float = Field(30, description="seconds before a service that keeps ending is started again")
    log_mib: int = Field(
        1000, ge=50, le=1_000_000, description="MiB for the logs of all services together; each has an equal part"
    )

    cpu_overcommit: float = Field(4.0, description="CPUs that the agent offers per CPU of this machine")
    processes_per_cpu: int = Field(
        2048, ge=256, le=65_536, description="processes and threads that a slice may have per CPU of its shape"
    )

    app_dirs: Annotated[tuple[Path, ...], NoDecode] = Field(
        default_factory=_default_app_dirs, description="directories of app packs, separated by colons"
    )

    @field_validator("app_dirs", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(Path(part) for part in value.split(":") if part) if isinstance(value, str) else value

    @field_validator("trusted_proxies")
    @classmethod
    def _readable(cls, value: str) -> str:
        read_proxies(value)
        return value

    @field_validator("api_name", "public_url", "ca_file", mode="before")
    @classmethod
    def _unset(cls, value: object) -> object:
        return None if value == "" else value

    @field_validator("public_url")
    @classmethod
    def _is_address(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(value)
        if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username or parts.query:
            raise ValueError(f"GPUAAS_PUBLIC_URL is {value[:200]!r}: write an address as https://gpuaas.example")
        return value.rstrip("/")

    @field_validator("tls")
    @classmethod
    def _is_known(cls, value: str) -> str:
        value = value.strip() or OFF
        if value not in {OFF, EMBEDDED}:
            parse_certificate_pair(value)
        return value

    @field_validator("state_dir", "ca_file")
    @classmethod
    def _absolute(cls, value: Path | None) -> Path | None:
        return None if value is None else value.absolute()

    @model_validator(mode="after")
    def _vault_needs_a_token(self) -> Settings:
        if self.vault_addr and not self.vault_token_file:
            raise ValueError("GPUAAS_VAULT_ADDR needs GPUAAS_VAULT_TOKEN_FILE beside it")
        return self

    @property
    def api_url(self) -> str:
        """How services and people on this machine reach the API."""
        return f"{'http' if self.tls == OFF else 'https'}://{_bracketed(self.reached_at)}:{self.api_port}"

    @property
    def reached_at(self) -> str:
        return self.api_name or ANY_ADDRESS.get(self.api_host, self.api_host)

    @property
    def public_address(self) -> str | None:
        """The API's address for people, where the API cannot know it from what it listens on."""
        return self.public_url or (self.api_url if self.reached_at != self.api_host else None)

    @property
    def is_exposed(self) -> bool:
        """Whether the API is served to other machines without TLS."""
        return self.tls == OFF and not is_loopback(self.api_host)

    @property
    def tls_dir(self) -> Path:
        return self.state_dir / "tls"

    @property
    def certificate_names(self) -> list[str]:
        """The names that a certificate of the embedded authority holds."""
        public = urlsplit(self.public_url).hostname if self.public_url else None
        asked = [self.reached_at, public, socket.gethostname(), "localhost", "127.0.0.1", "::1"]
        return [name for name in dict.fromkeys(asked) if name and name.isascii()]

    @property
    def trusted_file(self) -> Path | None:
        """The authority that the stack's own clients trust, beside those of the machine."""
        if self.tls == EMBEDDED:
            return self.tls_dir / "ca.pem"
        return None if self.tls == OFF else self.ca_file

    @property
    def certificate_pair(self) -> str | None:
        """The API's certificate and key, as its own setting names them."""
        if self.tls == EMBEDDED:
            return f"{self.tls_dir / 'server.pem'}:{self.tls_dir / 'server.pem'}"
        return None if self.tls == OFF else self.tls

    @property
    def registry_address(self) -> str:
        return (self.registry_url or f"http://127.0.0.1:{self.registry_port}").rstrip("/")

    @property
    def registry_dir(self) -> Path:
        return self.state_dir / "registry"

    @property
    def storage_pool(self) -> str:
        return f"gpuaas-{self.environment}"

    @property
    def admin_file(self) -> Path:
        return self.state_dir / "admin.json"

    @property
    def gpu_dir(self) -> Path:
        return stand_in_dir(self.environment)

    @property
    def admin_password_file(self) -> Path:
        """The password alone, to be piped into a login."""
        return self.state_dir / "admin-password"

    @property
    def join_token_file(self) -> Path:
        return self.state_dir / "agent" / "join-token"

    @property
    def metrics_token_file(self) -> Path:
        """The token alone, for Prometheus."""
        return self.state_dir / "platform" / "metrics-token"

    def app_dir(self, slug: str) -> Path:
        return self.state_dir / "apps" / slug

    def service_account_file(self, slug: str) -> Path:
        return self.app_dir(slug) / "service-account.json"


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
