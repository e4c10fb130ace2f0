"""The services of the platform: API, agent and app controllers, each with its program, user and environment, and no
more of the machine than it needs."""

from __future__ import annotations

import json
import os
import secrets
import stat
import subprocess
import sys
import urllib.request
from pathlib import Path

from gpuaas_contract.trust import TrustError, client_context, explain
from gpuaas_stack import users
from gpuaas_stack.authority import Authority
from gpuaas_stack.errors import StackError
from gpuaas_stack.gpus import ensure_gpus
from gpuaas_stack.packs import Pack, program
from gpuaas_stack.registry import Registry
from gpuaas_stack.service import Ready, Service
from gpuaas_stack.settings import Settings

ADMIN_EMAIL = "admin@gpuaas.example"
SIGNING_KEY = "signing-key.pem"
CERTIFICATE_KEEPER = "certificate-keeper"
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


def check_certificate(settings: Settings) -> None:
    """Refuse a certificate that clients would refuse, in words and before anything is changed."""
    command = users.run_as(users.API, [program("gpuaas-platform"), "check-certificate", settings.reached_at])
    environment = {"PATH": os.environ["PATH"], "GPUAAS_TLS": settings.certificate_pair or ""}
    done = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise StackError(f"cannot serve HTTPS: {done.stderr.strip()[-2000:]}")
    if settings.trusted_file is not None:
        readable = users.run_as(users.API, ["test", "-r", str(settings.trusted_file)])
        if subprocess.run(readable, check=False, capture_output=True).returncode != 0:
            raise StackError(f"cannot use GPUAAS_CA_FILE: only root can read {settings.trusted_file}, services cannot")


def check_trust(settings: Settings) -> None:
    """Ask the API as its clients do, so that what they would refuse is said here."""
    try:
        context = client_context(settings.api_url, settings.trusted_file)
        with urllib.request.urlopen(f"{settings.api_url}/healthz", timeout=10, context=context):  # noqa: S310 - our own
            return
    except TrustError as error:
        raise StackError(f"cannot serve HTTPS: {error}") from None
    except OSError as error:
        raise StackError(f"cannot reach the API at {settings.api_url}: {explain(error) or error}") from None


def authority_of(settings: Settings) -> Authority:
    return Authority(settings.tls_dir, settings.certificate_names)


def certificate_service(settings: Settings) -> Service:
    """Describe the keeper of the embedded authority's certificate, which renews it while everything runs."""
    return Service(
        name=CERTIFICATE_KEEPER,
        argv=[program("gpuaas-stack"), "keep-certificate"],
        order=API_ORDER,
        env={
            "GPUAAS_STATE_DIR": str(settings.state_dir),
            "GPUAAS_TLS": settings.tls,
            "GPUAAS_API_HOST": settings.api_host,
            **({"GPUAAS_API_NAME": settings.api_name} if settings.api_name else {}),
            **({"GPUAAS_PUBLIC_URL": settings.public_url} if settings.public_url else {}),
        },
    )


def _trust_environment(settings: Settings) -> dict[str, str]:
    if settings.trusted_file is None:
        return {}
    # Another authority in the same file makes another service of its client, which is started anew and trusts it.
    return {
        "GPUAAS_CA_FILE": str(settings.trusted_file),
        "GPUAAS_CA_DIGEST": users.digest_of(settings.trusted_file),
    }


def _ensure_metrics_token(settings: Settings) -> Path:
    if not settings.metrics_token_file.exists():
        users.write_private(settings.metrics_token_file, secrets.token_urlsafe(32) + "\n", users.API)
    return settings.metrics_token_file


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
    chosen = {
        "GPUAAS_REGISTRY_URL": settings.registry_address,
        "GPUAAS_ARTIFACT_LARGEST_GIB": str(settings.artifact_largest_gib),
        "GPUAAS_ARTIFACT_OWNER_GIB": str(settings.artifact_owner_gib),
        "GPUAAS_REGISTRY_TOTAL_GIB": str(settings.registry_total_gib),
        "GPUAAS_REGISTRY_RESERVE_GIB": str(settings.registry_reserve_gib),
    }
    if settings.registry_url is None:
        registry = Registry(settings.registry_dir, settings.registry_port, settings.api_url)
        chosen["GPUAAS_REGISTRY_DATA"] = str(registry.data)
        chosen["GPUAAS_REGISTRY_SECRET_FILE"] = str(registry.shared_secret)
        # Only the guard of our own registry asks there.
        chosen["GPUAAS_REGISTRY_CHECK_URL"] = settings.api_url
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
            **({"GPUAAS_TLS": settings.certificate_pair} if settings.certificate_pair else {}),
            **({"GPUAAS_PUBLIC_URL": settings.public_address} if settings.public_address else {}),
            "GPUAAS_METRICS_TOKEN_FILE": str(_ensure_metrics_token(settings)),
            **_registry_environment(settings),
            "GPUAAS_ENVIRONMENT": settings.environment,
            "GPUAAS_TRUSTED_PROXIES": settings.trusted_proxies,
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
            "GPUAAS_LOG_MIB": str(settings.log_mib),
            **({"GPUAAS_LXD_NETWORK": settings.lxd_network} if settings.lxd_network else {}),
        },
    )


def agent_service(settings: Settings) -> Service:
    # Root, because it makes machines.
    own = users.ensure_dir(settings.state_dir / "agent", "root", 0o700)
    return Service(
        name="agent",
        argv=[*within(settings.lxd_network), program("gpuaas-agent"), "run"],
        order=AGENT_ORDER,
        cwd=str(own),
        env={
            "HOME": str(own),
            "GPUAAS_API_URL": settings.api_url,
            **_trust_environment(settings),
            "GPUAAS_AGENT_STATE_DIR": str(own),
            "GPUAAS_ENVIRONMENT": settings.environment,
            "GPUAAS_LXD_SOCKET": str(settings.lxd_socket),
            "GPUAAS_STORAGE_POOL": settings.storage_pool,
            "GPUAAS_IMAGE_ALIAS": settings.image_alias,
            "GPUAAS_GPU_DEVICES": ensure_gpus(settings.gpu_dir, settings.gpu_stand_ins),
            "GPUAAS_CPU_OVERCOMMIT": str(settings.cpu_overcommit),
            "GPUAAS_PROCESSES_PER_CPU": str(settings.processes_per_cpu),
            "GPUAAS_JOIN_TOKEN_FILE": str(settings.join_token_file),
            "GPUAAS_NETWORK_RANGE": str(settings.subnet),
        },
    )


def within(network: str | None) -> list[str]:
    """The words that enter a network namespace."""
    return [] if network is None else ["nsenter", f"--net=/run/netns/{network}"]


def write_join_token(settings: Settings, token: str) -> None:
    users.ensure_dir(settings.state_dir / "agent", "root", 0o700)
    users.write_private(settings.join_token_file, token)


def ensure_app_dir(settings: Settings, slug: str) -> Path:
    """Make the private directory of a controller, and the user that it belongs to."""
    user = users.controller_user(slug)
    users.ensure_user(user)
    users.ensure_dir(settings.state_dir / "apps")
    own = settings.app_dir(slug)
    if own.exists():
        users.hand_over(own, users.SHARED_BY_CONTROLLERS, user)
    return users.ensure_dir(own, user, 0o700)


def belongs_to_shared_user(settings: Settings, slug: str) -> bool:
    """Return whether the directory of a controller is still that of an earlier version, whose user all shared."""
    try:
        return settings.app_dir(slug).owner() == users.SHARED_BY_CONTROLLERS
    except (FileNotFoundError, KeyError):
        return False


def ensure_pack_dir(settings: Settings, slug: str) -> Path:
    """Make the directory for what an app is published with. Root writes here, so that the controller must not."""
    users.ensure_dir(settings.state_dir / "packs", mode=0o700)
    own = users.ensure_dir(settings.state_dir / "packs" / slug, mode=0o700)
    key, former = own / SIGNING_KEY, settings.app_dir(slug) / SIGNING_KEY
    if not key.exists() and former.is_file():
        # Earlier versions kept it where the controller could put another in its place: looked at where it cannot.
        moved = own / f".{SIGNING_KEY}.moved"
        former.rename(moved)
        status = moved.lstat()
        if stat.S_ISREG(status.st_mode) and status.st_uid == 0 and status.st_nlink == 1:
            moved.rename(key)
        else:
            moved.unlink()
    return own


def write_service_account(settings: Settings, slug: str, service_account_id: str, private_key_pem: str) -> None:
    ensure_app_dir(settings, slug)
    content = {"service_account_id": service_account_id, "private_key_pem": private_key_pem}
    content |= _address(settings)
    users.write_private(settings.service_account_file(slug), json.dumps(content), users.controller_user(slug))


def _address(settings: Settings) -> dict[str, str]:
    trusted = {} if settings.trusted_file is None else {"ca_file": str(settings.trusted_file)}
    return {"api_url": settings.api_url, **trusted}


def _update_address(settings: Settings, slug: str) -> None:
    """Write the API's present address into an account's file: it may have become another since."""
    path = settings.service_account_file(slug)
    if not path.exists():
        return
    content = json.loads(path.read_text())
    kept = {key: value for key, value in content.items() if key not in {"api_url", "ca_file"}}
    wanted = {**kept, **_address(settings)}
    if wanted != content:
        users.write_private(path, json.dumps(wanted), path.owner())


def controller_service(settings: Settings, pack: Pack) -> Service:
    own = ensure_app_dir(settings, pack.slug)
    _update_address(settings, pack.slug)
    return Service(
        name=f"controller-{pack.slug}",
        argv=pack.controller_argv(),
        order=CONTROLLER_ORDER,
        user=users.controller_user(pack.slug),
        cwd=str(own),
        env={
            "HOME": str(own),
            "GPUAAS_API_URL": settings.api_url,
            **_trust_environment(settings),
            "GPUAAS_SERVICE_ACCOUNT_FILE": str(settings.service_account_file(pack.slug)),
            "APP_STATE_DIR": str(own),
        },
    )
