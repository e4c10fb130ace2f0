"""The services of the platform: API, agent and app controllers, each with its program, user and environment, and no
more of the machine than it needs."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
from pathlib import Path

from gpuaas_stack import users
from gpuaas_stack.errors import StackError
from gpuaas_stack.gpus import ensure_gpus
from gpuaas_stack.packs import Pack, program
from gpuaas_stack.registry import Registry
from gpuaas_stack.service import Ready, Service
from gpuaas_stack.settings import Settings

ADMIN_EMAIL = "admin@gpuaas.example"
LXD_ORDER, API_ORDER, AGENT_ORDER, CONTROLLER_ORDER = 20, 30, 40, 50


def ensure_admin_file(settings: Settings) -> None:
    """Write down the first administrator, whom the API makes while it has none, and the password for people."""
    if not settings.admin_file.exists():
        password = secrets.token_urlsafe(18)
        users.write_private(settings.admin_password_file, password + "\n")
        content = {"email": ADMIN_EMAIL, "password": password}
        users.write_private(settings.admin_file, json.dumps(content) + "\n", users.API)


def check_schema(database_url: str) -> None:
    """Refuse a database whose schema is not current before anything starts: it is changed by command only."""
    command = [program("gpuaas-platform"), "migrate", "--check"]
    environment = {"PATH": os.environ["PATH"], "GPUAAS_DATABASE_URL": database_url}
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise StackError(f"cannot use GPUAAS_DATABASE_URL: {done.stderr.strip()}")


def check_token_file(path: Path) -> None:
    done = subprocess.run(users.run_as(users.API, ["test", "-r", str(path)]), check=False, capture_output=True)
    if done.returncode != 0:
        raise StackError(f"cannot use GPUAAS_VAULT_TOKEN_FILE: the user {users.API} cannot read {path}")


def registry_certificates(vault_addr: str, vault_token_file: Path) -> str:
    """The certificates by which the registry trusts the platform's tokens. Makes the key where there is none yet."""
    command = users.run_as(users.API, [program("gpuaas-platform"), "registry-certificates"])
    environment = {
        "PATH": os.environ["PATH"],
        "GPUAAS_VAULT_ADDR": vault_addr,
        "GPUAAS_VAULT_TOKEN_FILE": str(vault_token_file),
    }
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise StackError(f"cannot make the key for the registry's tokens: {done.stderr.strip()[-2000:]}")
    return done.stdout


def _registry_environment(settings: Settings) -> dict[str, str]:
    chosen = {"GPUAAS_REGISTRY_URL": settings.registry_address}
    if settings.registry_url is None:
        registry = Registry(settings.registry_dir, settings.registry_port, settings.api_url)
        chosen["GPUAAS_REGISTRY_DATA"] = str(registry.data)
        chosen["GPUAAS_REGISTRY_SECRET_FILE"] = str(registry.shared_secret)
    return chosen


def api_service(settings: Settings, database_url: str, vault_addr: str, vault_token_file: Path) -> Service:
    own = users.ensure_dir(settings.state_dir / "platform", users.API, 0o700)
    users.check_reachable(Path(sys.executable).parent, users.API)
    return Service(
        name="api",
        argv=[program("gpuaas-platform"), "serve"],
        order=API_ORDER,
        user=users.API,
        cwd=str(own),
        env={
            "HOME": str(own),
            "GPUAAS_DATABASE_URL": database_url,
            "GPUAAS_VAULT_ADDR": vault_addr,
            "GPUAAS_VAULT_TOKEN_FILE": str(vault_token_file),
            "GPUAAS_API_HOST": settings.api_host,
            "GPUAAS_API_PORT": str(settings.api_port),
            **_registry_environment(settings),
            "GPUAAS_ENVIRONMENT": settings.environment,
            "GPUAAS_TERMINAL_IDLE_SECONDS": str(settings.terminal_idle_seconds),
            "GPUAAS_NETWORK_RANGE": str(settings.subnet),
            "GPUAAS_BOOTSTRAP_ADMIN_FILE": str(settings.admin_file),
            # Everything on one machine: its owner reads the password from the file again and again.
            "GPUAAS_BOOTSTRAP_ADMIN_PERMANENT": "true",
            # A database of somebody else's is changed by command only.
            **({"GPUAAS_MIGRATE_AT_START": "true"} if settings.database_url is None else {}),
        },
        ready=Ready("http", f"{settings.api_url}/readyz"),
    )


def lxd_service(settings: Settings) -> Service:
    """Describe LXD's keeper: LXD itself is shared with other environments and outlives this one."""
    return Service(
        name="lxd-keeper",
        argv=[program("gpuaas-stack"), "keep-lxd"],
        order=LXD_ORDER,
        env={
            "GPUAAS_ENVIRONMENT": settings.environment,
            "GPUAAS_LXD_SOCKET": str(settings.lxd_socket),
            "GPUAAS_LXD_RUN_DIR": str(settings.lxd_run_dir),
            **({"GPUAAS_LXD_NETWORK": settings.lxd_network} if settings.lxd_network else {}),
        },
    )


def agent_service(settings: Settings) -> Service:
    # Root, because it makes machines.
    own = users.ensure_dir(settings.state_dir / "agent", "root", 0o700)
    return Service(
        name="agent",
        argv=[*_within(settings.lxd_network), program("gpuaas-agent"), "run"],
        order=AGENT_ORDER,
        cwd=str(own),
        env={
            "HOME": str(own),
            "GPUAAS_API_URL": settings.api_url,
            "GPUAAS_AGENT_STATE_DIR": str(own),
            "GPUAAS_ENVIRONMENT": settings.environment,
            "GPUAAS_LXD_SOCKET": str(settings.lxd_socket),
            "GPUAAS_STORAGE_POOL": settings.storage_pool,
            "GPUAAS_IMAGE_ALIAS": settings.image_alias,
            "GPUAAS_GPU_DEVICES": ensure_gpus(settings.gpu_dir, settings.gpu_stand_ins),
            "GPUAAS_CPU_OVERCOMMIT": str(settings.cpu_overcommit),
            "GPUAAS_JOIN_TOKEN_FILE": str(settings.join_token_file),
        },
    )


def _within(network: str | None) -> list[str]:
    return [] if network is None else ["nsenter", f"--net=/run/netns/{network}"]


def write_join_token(settings: Settings, token: str) -> None:
    users.ensure_dir(settings.state_dir / "agent", "root", 0o700)
    users.write_private(settings.join_token_file, token)


def ensure_app_dir(settings: Settings, slug: str) -> Path:
    users.ensure_dir(settings.state_dir / "apps")
    return users.ensure_dir(settings.app_dir(slug), users.APPS, 0o700)


def write_service_account(settings: Settings, slug: str, service_account_id: str, private_key_pem: str) -> None:
    ensure_app_dir(settings, slug)
    content = {"service_account_id": service_account_id, "private_key_pem": private_key_pem}
    content["api_url"] = settings.api_url
    users.write_private(settings.service_account_file(slug), json.dumps(content), users.APPS)


def controller_service(settings: Settings, pack: Pack) -> Service:
    own = ensure_app_dir(settings, pack.slug)
    return Service(
        name=f"controller-{pack.slug}",
        argv=pack.controller_argv(),
        order=CONTROLLER_ORDER,
        user=users.APPS,
        cwd=str(own),
        env={
            "HOME": str(own),
            "GPUAAS_API_URL": settings.api_url,
            "GPUAAS_SERVICE_ACCOUNT_FILE": str(settings.service_account_file(pack.slug)),
            "APP_STATE_DIR": str(own),
        },
    )
