"""A platform for tests: real PostgreSQL, real OpenBao and the API, in a state directory and on ports of its own."""

import fcntl
import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
from argon2 import PasswordHasher
from psycopg import sql

from gpuaas_stack import users
from gpuaas_stack.openbao import OpenBao
from gpuaas_stack.progress import Progress
from gpuaas_stack.settings import Settings
from gpuaas_stack.stack import Stack
from gpuaas_stack.supervision import Supervision
from tests.support.database import postgres_of
from tests.support.ports import free_port

PARENT = Path("/var/tmp")
IN_USE = "tests.lock"


@contextmanager
def own_stack(environment: str, **changes: Any) -> Iterator[Stack]:
    """A supervisor with no services yet. What it is given ends, and its state with it, when the tests do."""
    users.ensure_users()
    remove_leftovers(environment)
    # Not pytest's own temporary directory: that one lets no other user in, and services run as others.
    state_dir = Path(tempfile.mkdtemp(prefix=f"gpuaas-{environment}-", dir=PARENT))
    state_dir.chmod(0o755)
    # Servers that the shell of whoever runs the tests names are not for tests.
    chosen = {"database_url": None, "vault_addr": None, "registry_url": None, "app_dirs": (), "tls": "off", **changes}
    settings = Settings(
        state_dir=state_dir,
        environment=environment,
        api_port=free_port(),
        postgres_port=free_port(),
        openbao_port=free_port(),
        openbao_cluster_port=free_port(),
        registry_port=free_port(),
        **chosen,
    )
    stack = Stack(settings, Progress())
    with (state_dir / f".{IN_USE}").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Locked before it can be found: another run that starts just now must not take it for a leftover.
        (state_dir / f".{IN_USE}").rename(state_dir / IN_USE)
        try:
            stack.supervision.ensure_running()
            yield stack
        finally:
            stack.supervision.stop()
            shutil.rmtree(state_dir)


def remove_leftovers(environment: str) -> None:
    """Servers and databases of a run that was killed: nobody holds their lock any more."""
    for path in PARENT.glob(f"gpuaas-{environment}-*/{IN_USE}"):
        # Not there any more, or locked: its run has just ended, goes on, or another one clears it up.
        with suppress(FileNotFoundError, BlockingIOError), path.open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            Supervision(path.parent).stop()
            shutil.rmtree(path.parent)


@contextmanager
def platform_services(environment: str) -> Iterator[Settings]:
    """The API without machines."""
    with own_stack(environment) as stack:
        stack.ensure_platform()
        yield stack.settings


def mend(settings: Settings) -> None:
    """Start the servers of a platform that are stopped, and wait until it is whole again."""
    supervision = Supervision(settings.state_dir)
    for service in (postgres_of(settings).service(), openbao_of(settings).service()):
        supervision.ensure_service(service)
    for name in ("postgres", "openbao", "api"):
        supervision.wait_ready(name)


@contextmanager
def bare_servers(environment: str) -> Iterator[Settings]:
    """PostgreSQL with a database to clone, and OpenBao. The API made the database ready, and left."""
    with own_stack(environment) as stack:
        stack.ensure_platform()
        stack.supervision.remove_service("api")
        yield stack.settings


@contextmanager
def template_servers(environment: str) -> Iterator[Settings]:
    """The same for tests, which make hundreds of clones and of logins."""
    with bare_servers(environment) as settings:
        _hurry(settings)
        yield settings


def _hurry(settings: Settings) -> None:
    """No database of these tests outlives its server, and nobody guesses the administrator's password."""
    postgres = postgres_of(settings)
    with psycopg.connect(postgres.admin_url(), autocommit=True) as connection:
        for name in ("fsync", "full_page_writes", "synchronous_commit"):
            connection.execute(sql.SQL("ALTER SYSTEM SET {} = off").format(sql.Identifier(name)))
        connection.execute("SELECT pg_reload_conf()")
    email, password = admin_credentials(settings)
    quick = PasswordHasher(memory_cost=32).hash(password)
    with psycopg.connect(postgres.database_url()) as connection:
        connection.execute("UPDATE users SET password_hash = %s WHERE email = %s", (quick, email))


def openbao_of(settings: Settings) -> OpenBao:
    return OpenBao(settings.state_dir / "openbao", settings.openbao_port, settings.openbao_cluster_port)


def admin_credentials(settings: Settings) -> tuple[str, str]:
    admin = json.loads(settings.admin_file.read_text())
    return admin["email"], admin["password"]
