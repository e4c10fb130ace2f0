"""Everything that can be chosen about one stack on one machine, each by one GPUAAS_… variable."""

from __future__ import annotations

from ipaddress import IPv4Network
from pathlib import Path
from typing import Annotated

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, NoDecode, SettingsConfigDict

from gpuaas_stack.gpus import stand_in_dir

ENVIRONMENT_TAG = "user.gpuaas.environment"


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
    postgres_port: int = 8471
    openbao_port: int = 8472
    openbao_cluster_port: int = 8473
    registry_port: int = 8474

    database_url: SecretStr | None = Field(None, description="use this server; no PostgreSQL is started")
    vault_addr: str | None = Field(None, description="use this OpenBao or Vault; none is started")
    vault_token_file: Path | None = None
    registry_url: str | None = Field(None, description="use this OCI registry for artifacts; none is started")

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

    cpu_overcommit: float = Field(4.0, description="CPUs that the agent offers per CPU of this machine")

    app_dirs: Annotated[tuple[Path, ...], NoDecode] = Field(
        default_factory=_default_app_dirs, description="directories of app packs, separated by colons"
    )

    @field_validator("app_dirs", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return tuple(Path(part) for part in value.split(":") if part) if isinstance(value, str) else value

    @field_validator("state_dir")
    @classmethod
    def _absolute(cls, value: Path) -> Path:
        return value.absolute()

    @model_validator(mode="after")
    def _vault_needs_a_token(self) -> Settings:
        if self.vault_addr and not self.vault_token_file:
            raise ValueError("GPUAAS_VAULT_ADDR needs GPUAAS_VAULT_TOKEN_FILE beside it")
        return self

    @property
    def api_url(self) -> str:
        return f"http://{self.api_host}:{self.api_port}"

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

    def app_dir(self, slug: str) -> Path:
        return self.state_dir / "apps" / slug

    def service_account_file(self, slug: str) -> Path:
        return self.app_dir(slug) / "service-account.json"
