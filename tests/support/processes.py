"""Further API processes beside the one that the suite runs: on the same database, or on one of their own."""

import json
import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import psycopg

from gpuaas_stack import platform_services
from gpuaas_stack.openbao import OpenBao
from gpuaas_stack.postgres import ROLE, Postgres
from gpuaas_stack.settings import Settings
from tests.support.services import free_port
from tests.support.waiting import wait_until


def openbao_of(settings: Settings) -> OpenBao:
    return OpenBao(settings.state_dir / "openbao", settings.openbao_port, settings.openbao_cluster_port)


def _postgres(settings: Settings) -> Postgres:
    return Postgres(settings.state_dir / "postgres", settings.postgres_port)


@contextmanager
def fresh_database(settings: Settings) -> Iterator[str]:
    """An empty database in the suite's own server."""
    postgres, name = _postgres(settings), f"fresh_{secrets.token_hex(4)}"
    with psycopg.connect(postgres.admin_url(), autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name} OWNER {ROLE}".encode())
        try:
            yield postgres.database_url().rsplit("/", 1)[0] + f"/{name}"
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


class ApiProcess:
    """`gpuaas-platform serve` with the suite's OpenBao, on a port of its own."""

    def __init__(self, settings: Settings, database_url: str | None = None, **environment: str) -> None:
        own = settings.model_copy(update={"api_port": free_port()})
        openbao = openbao_of(settings)
        url = database_url or _postgres(settings).database_url()
        service = platform_services.api_service(own, url, openbao.address, openbao.token_file)
        self.url = own.api_url
        self._program = service.argv[0]
        changed = {f"GPUAAS_{name.upper()}": value for name, value in environment.items()}
        self._environment = {"PATH": os.environ["PATH"], **service.env, **changed}
        self.log = settings.state_dir / "logs" / f"api-{own.api_port}.log"

    def run(self, command: str) -> subprocess.CompletedProcess[str]:
        """Until it ends by itself."""
        return subprocess.run(
            [self._program, command], env=self._environment, capture_output=True, text=True, timeout=60, check=False
        )

    @contextmanager
    def serving(self) -> Iterator[str]:
        with self.starting() as url:
            self.wait_ready()
            yield url

    @contextmanager
    def starting(self) -> Iterator[str]:
        """Without waiting for it."""
        with self.log.open("ab") as log:
            self._process = subprocess.Popen([self._program, "serve"], env=self._environment, stdout=log, stderr=log)
        try:
            yield self.url
        finally:
            self._process.terminate()
            self._process.wait(30)

    def wait_ready(self) -> None:
        wait_until(self._is_ready, f"the API at {self.url} is ready", 60)

    def _is_ready(self) -> bool:
        assert self._process.poll() is None, f"the API ended: {self.log.read_text()[-2_000:]}"
        try:
            return httpx.get(f"{self.url}/readyz", timeout=5).status_code == 200
        except httpx.TransportError:
            return False


@contextmanager
def admin_file(directory: Path, email: str, password: str) -> Iterator[str]:
    path = directory / f"admin-{secrets.token_hex(4)}.json"
    path.write_text(json.dumps({"email": email, "password": password}))
    try:
        yield str(path)
    finally:
        path.unlink()
