"""Settings of one API process, from the environment."""

from ipaddress import IPv4Network
from pathlib import Path
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import Field, field_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from gpuaas_contract.access import HOST_CERTIFICATE_SECONDS
from gpuaas_contract.agent_link import OFFLINE_AFTER_SECONDS
from gpuaas_contract.operations import LEASE_SECONDS
from gpuaas_contract.proxies import Network, read_proxies
from gpuaas_contract.trust import parse_certificate_pair

ANY_ADDRESS = frozenset({"", "0.0.0.0", "::"})  # noqa: S104 - only compared with


class DatabaseSettings(BaseSettings):
    """All that a migration needs."""

    model_config = SettingsConfigDict(env_prefix="GPUAAS_")

    database_url: str


class VaultSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="GPUAAS_")

    vault_addr: str
    vault_token_file: Path


class ServingSettings(BaseSettings):
    """Where the API listens, and how clients reach it."""

    model_config = SettingsConfigDict(env_prefix="GPUAAS_")

    api_host: str = "127.0.0.1"
    api_port: int = 8470
    public_url: str | None = None
    """How browsers and command lines reach the API, where that differs from the address it listens on."""
    tls: Annotated[tuple[Path, Path] | None, NoDecode] = None
    """A certificate and its key, as `/path/cert.pem:/path/key.pem`: HTTPS instead of HTTP. `off`, or unset: HTTP."""
    tls_check_seconds: float = Field(10, gt=0, le=3600)
    """How often to look whether these files were replaced."""
    request_header_seconds: float = Field(15, gt=0, le=3600)
    """A connection on which the headers of a request are not complete after so long is closed."""
    request_body_seconds: float = Field(60, gt=0, le=3600)
    """The same for its body, which has at most two megabytes."""

    @field_validator("tls", mode="before")
    @classmethod
    def _read_pair(cls, value: object) -> object:
        if isinstance(value, str):
            if value == "embedded":
                raise ValueError("the embedded authority is gpuaas-stack's: name a certificate and its key here")
            return None if value.strip() in {"", "off"} else parse_certificate_pair(value)
        return value

    @property
    def origin(self) -> str:
        own = f"{'http' if self.tls is None else 'https'}://{self.api_host}:{self.api_port}"
        return (self.public_url or own).rstrip("/")

    @property
    def names(self) -> list[str]:
        """The names that clients may ask for: the certificate has to hold one of them."""
        asked = [urlsplit(self.public_url).hostname or ""] if self.public_url else []
        return [name for name in dict.fromkeys([*asked, self.api_host]) if name not in ANY_ADDRESS]


class Settings(DatabaseSettings, VaultSettings, ServingSettings):
    registry_url: str = "http://127.0.0.1:8474"
    """The OCI registry that holds artifacts, as this process, people and node agents reach it."""
    registry_data: Path | None = None
    """Where the registry keeps its files, where this process can read them; and with which secret it signs the state of
    an upload. With both, an upload that was cut goes on at the byte where it was."""
    registry_secret_file: Path | None = None
    registry_check_url: str | None = None
    """Where the guard in front of the registry reaches this platform, to ask whether the right behind a token still
    stands. Without it, and for a registry without the guard, a token is good until it expires."""
    artifact_largest_gib: float = Field(100, gt=0, le=1024)
    """The largest file that becomes an artifact."""
    artifact_owner_gib: float = Field(200, ge=0, allow_inf_nan=False)
    """The most that one app or one project may have in the registry, unfinished uploads included."""
    registry_total_gib: float = Field(1000, ge=0, allow_inf_nan=False)
    """The most that all of them may have there together."""
    registry_reserve_gib: float = Field(4, ge=0, allow_inf_nan=False)
    """With less than this free on the registry's disk nothing is pushed: the database and the vault need it."""
    environment: str = "demo"
    network_range: IPv4Network = IPv4Network("10.83.0.0/16")
    """The platform-wide address plan: each project gets one /24 of it."""
    requests_per_second: float = 500
    """Per principal and process; a burst of two seconds' worth is allowed."""
    logins_per_minute: float = 60
    """Per account, source address and process, wrong passwords and right ones alike."""
    login_failures_per_address: int = Field(20, ge=1)
    """Wrong passwords from one source address after which each one more doubles its wait, up to a minute."""
    login_failures_per_account: int = Field(5, ge=1)
    """The same for one account from one source address, up to a quarter of an hour."""
    terminal_login_idle_days: float = Field(7, ge=0.01, le=365)
    """A log-in of a command line that is not used for so long is over."""
    terminal_login_days: float = Field(30, ge=0.01, le=365)
    """It is over after so long in any case."""
    refresh_grace_seconds: float = Field(10, ge=0, le=60)
    """A refresh token works again for so long after its first use, for commands that run at once; the use of an older
    one ends its log-in."""
    trusted_proxies: Annotated[tuple[Network, ...], NoDecode] = ()
    """Networks of reverse proxies, separated by commas: from these alone X-Forwarded-… headers are believed."""
    schema_workers: int = Field(2, ge=1, le=64)
    """Processes that check manifests and inputs by the schemas of apps, for each API process. No tenant and no
    publisher has more than one of them at a time."""
    schema_check_seconds: int = Field(2, ge=1, le=60)
    """Of a core, for one check; the one that takes longer is stopped and refused."""
    password_memory_kib: int = Field(65_536, ge=32)
    """Memory that it takes to hash one password, and so what guessing costs. Tests, which guess nothing, take less."""
    bootstrap_admin_file: Path | None = None
    """JSON with `email` and `password` of the first administrator, read while there is no user."""
    bootstrap_admin_permanent: bool = False
    """Keep that password, for demonstrations and tests; otherwise it is good for one login."""
    migrate_at_start: bool = False
    """Bring the schema up to date by itself: for a database that belongs to this platform alone."""
    node_offline_after_seconds: int = Field(OFFLINE_AFTER_SECONDS, ge=1)
    """A node whose agent is silent for so long is offline."""
    operation_lease_seconds: int = Field(LEASE_SECONDS, ge=1)
    """An operation whose controller is silent for so long can be claimed by another."""
    feed_retention_hours: float = 168
    """How long changes are kept; who comes back later than that lists again."""
    feed_streams_per_principal: int = 64
    """Change feeds that one principal may wait on at a time, in one process."""
    feed_heartbeat_seconds: float = 10
    """A stream of changes on which nothing happens for so long says that it is still there."""
    streams_per_principal: int = 128
    """Streams to machines that one principal may have open at a time, in one process."""
    host_certificate_seconds: int = Field(HOST_CERTIFICATE_SECONDS, ge=60, le=30 * 86_400)
    """How long a machine can prove itself by one host certificate; it gets the next at half of that."""
    terminal_idle_seconds: float = 900
    """A browser terminal in which nobody types for so long is closed."""
    token_key_days: float = 30
    """The key that signs tokens gets a new version when its newest one is older than this."""
    receipt_key_days: float = Field(90, gt=0)
    """The same for the key that signs teardown receipts. Its old versions stay published."""
    metrics_token_file: Path | None = None
    """Who shows what is in this file reads `/metrics`, beside platform administrators: for Prometheus."""

    @field_validator("trusted_proxies", mode="before")
    @classmethod
    def _read_proxies(cls, value: object) -> object:
        return read_proxies(value) if isinstance(value, str) else value

    @field_validator("registry_check_url")
    @classmethod
    def _check_url(cls, value: str | None) -> str | None:
        if value is not None and (urlsplit(value).scheme not in {"http", "https"} or not urlsplit(value).hostname):
            raise ValueError("it is not an http or https address")
        return value

    @field_validator("registry_data", "registry_secret_file", "registry_check_url", mode="before")
    @classmethod
    def _empty_is_none(cls, value: object) -> object:
        """Else it would be the directory in which the process was started."""
        return None if value == "" else value
