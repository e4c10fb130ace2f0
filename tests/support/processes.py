"""API processes and databases in the servers that the suite shares."""

import http.client
import json
import os
import secrets
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
from psycopg import sql
from pydantic import SecretStr

from gpuaas_stack import platform_services
from gpuaas_stack.postgres import DATABASE, ROLE
from gpuaas_stack.service import Ready
from gpuaas_stack.settings import Settings
from tests.support import warm
from tests.support.database import database_url, postgres_of
from tests.support.ports import free_port
from tests.support.services import openbao_of
from tests.support.waiting import wait_until

FOR_TESTS = {
    # A password is hashed in no time, and one administrator logs in for all tests.
    "GPUAAS_PASSWORD_MEMORY_KIB": "32",
    "GPUAAS_LOGINS_PER_MINUTE": "6000",
    "GPUAAS_LOGIN_FAILURES_PER_ADDRESS": "100000",
    "GPUAAS_LOGIN_FAILURES_PER_ACCOUNT": "100000",
    # Where the machine is slow, a test that holds a lease is slow, too, and heart-beats come late.
    "GPUAAS_OPERATION_LEASE_SECONDS": "300",
    "GPUAAS_NODE_OFFLINE_AFTER_SECONDS": "300",
}


def log_file(settings: Settings) -> Path:
    return settings.state_dir / "logs" / f"api-{settings.api_port}.log"


def metrics_header(settings: Settings) -> dict[str, str]:
    """Read the metrics as Prometheus does."""
    return {"Authorization": f"Bearer {settings.metrics_token_file.read_text().strip()}"}


@contextmanager
def fresh_database(settings: Settings, template: str = "template1") -> Iterator[str]:
    """A database in the suite's own server: an empty one, or a clone of another. Its clients go with it."""
    postgres, name = postgres_of(settings), f"test_{secrets.token_hex(4)}"
    wanted = sql.SQL("CREATE DATABASE {} OWNER {} TEMPLATE {}").format(*map(sql.Identifier, (name, ROLE, template)))
    with psycopg.connect(postgres.admin_url(), autocommit=True) as connection:
        connection.execute(wanted)
        try:
            yield postgres.database_url().rsplit("/", 1)[0] + f"/{name}"
        finally:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@contextmanager
def cloned_platform(settings: Settings) -> Iterator[Settings]:
    """A database with the schema and the first administrator, and an API on it; OpenBao is everybody's."""
    with fresh_database(settings, DATABASE) as url:
        clone = settings.model_copy(update={"api_port": free_port(), "database_url": SecretStr(url)})
        with ApiProcess(clone, port=clone.api_port).serving():
            yield clone


class ApiProcess:
    """`gpuaas-platform serve` with the suite's OpenBao, on a port of its own."""

    def __init__(
        self, settings: Settings, database: str | None = None, *, port: int | None = None, **environment: str
    ) -> None:
        own = settings.model_copy(update={"api_port": port or free_port()})
        openbao = openbao_of(settings)
        url = database or database_url(settings)
        service = platform_services.api_service(own, url, openbao.address, openbao.token_file)
        self.url = own.api_url
        self._program = service.argv[0]
        changed = {f"GPUAAS_{name.upper()}": value for name, value in environment.items()}
        inherited = {name: os.environ[name] for name in ("PATH", "SSL_CERT_DIR") if name in os.environ}
        self._environment = {**inherited, **FOR_TESTS, **service.env, **changed}
        self.log = log_file(own)

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Until it ends by itself."""
        return subprocess.run(
            [self._program, command], env=self._environment, capture_output=True, text=True, timeout=300, check=False
        )

    @contextmanager
    def serving(self) -> Iterator[str]:
        with self.starting() as url:
            self.wait_ready()
            yield url

    @contextmanager
    def starting(self) -> Iterator[str]:
        """Without waiting for it."""
        self.start()
        try:
            yield self.url
        finally:
            # It is not asked to end: nothing may depend on that, and nobody has to wait for it.
            self.end(signal.SIGKILL)

    def start(self) -> None:
        self._process = warm.start(self._environment, self.log)

    def end(self, how: signal.Signals) -> None:
        if self._process.is_alive():
            os.kill(self.pid, how)
        self._process.join(30)
        assert not self._process.is_alive(), f"the API at {self.url} does not end after {how.name}"

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def wait_ready(self) -> None:
        wait_until(self._is_ready, f"the API at {self.url} is ready", 60, every=0.02)

    def _is_ready(self) -> bool:
        assert self._process.is_alive(), f"the API ended: {self.log.read_text()[-2_000:]}"
        if self.url.startswith("https:"):
            return Ready("http", f"{self.url}/healthz").check()
        # Not httpx, which reads all the certificates of the machine each time.
        link = http.client.HTTPConnection(urlsplit(self.url).netloc, timeout=5)
        try:
            link.request("GET", "/readyz")
            return link.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False
        finally:
            link.close()


@contextmanager
def admin_file(directory: Path, email: str, password: str) -> Iterator[str]:
    path = directory / f"admin-{secrets.token_hex(4)}.json"
    path.write_text(json.dumps({"email": email, "password": password}))
    try:
        yield str(path)
    finally:
        path.unlink()
