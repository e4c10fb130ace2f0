"""Settings of one API process, from the environment."""

from ipaddress import IPv4Network
from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from gpuaas_contract.agent_link import OFFLINE_AFTER_SECONDS
from gpuaas_contract.operations import LEASE_SECONDS


class DatabaseSettings(BaseSettings):
    """All that a migration needs."""

    model_config = SettingsConfigDict(env_prefix="GPUAAS_")

    database_url: str


class VaultSettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="GPUAAS_")

    vault_addr: str
    vault_token_file: Path


class Settings(DatabaseSettings, VaultSettings):
    registry_url: str = "http://127.0.0.1:8474"
    """The OCI registry that holds artifacts, as this process, people and node agents reach it."""
    registry_data: Path | None = None
    """Where the registry keeps its files, where this process can read them; and with which secret it signs the state of
    an upload. With both, an upload that was cut goes on at the byte where it was."""
    registry_secret_file: Path | None = None
    api_host: str = "127.0.0.1"
    api_port: int = 8470
    environment: str = "demo"
    network_range: IPv4Network = IPv4Network("10.83.0.0/16")
    """The platform-wide address plan: each project gets one /24 of it."""
    requests_per_second: float = 500
    """Per principal and process; a burst of two seconds' worth is allowed."""
    logins_per_minute: float = 60
    """Per e-mail address and process, wrong passwords and right ones alike."""
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
    terminal_idle_seconds: float = 900
    """A browser terminal in which nobody types for so long is closed."""
    public_url: str | None = None
    """How browsers and command lines reach the API, where that differs from the address it listens on."""
    token_key_days: float = 30
    """The key that signs tokens gets a new version when its newest one is older than this."""

    @property
    def origin(self) -> str:
        return (self.public_url or f"http://{self.api_host}:{self.api_port}").rstrip("/")
