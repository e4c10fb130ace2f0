"""A private PostgreSQL 15: own cluster, own port and socket, run as an unprivileged user.

The cluster's superuser is for the stack alone; the platform has a role of its own that owns its database."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import time
from pathlib import Path

import psycopg
from psycopg import sql

from gpuaas_stack import users
from gpuaas_stack.errors import StackError
from gpuaas_stack.processes import ProcessId, end, identify, wait_gone
from gpuaas_stack.service import Ready, Service

BIN_DIR = Path("/usr/lib/postgresql/15/bin")
SUPERUSER = "gpuaas_admin"
ROLE = "gpuaas"
DATABASE = "gpuaas"


class Postgres:
    def __init__(self, directory: Path, port: int) -> None:
        self.directory = directory
        self.port = port
        self.data = directory / "data"
        self.sockets = directory / "run"

    def prepare(self) -> None:
        """Make the cluster if there is none. A half-made one is thrown away: it never held anything."""
        if not (BIN_DIR / "postgres").exists():
            raise StackError(f"cannot find PostgreSQL 15 in {BIN_DIR}: run scripts/setup")
        users.ensure_dir(self.directory, users.STORES, 0o700)
        users.ensure_dir(self.sockets, users.STORES, 0o700)
        users.check_reachable(self.directory, users.STORES)
        self._secret("admin-password")
        self._secret("password")
        if not self.data.exists():
            self._initialise()
        self._clear_after_kill()

    def _initialise(self) -> None:
        fresh = self.directory / "data.new"
        shutil.rmtree(fresh, ignore_errors=True)
        command = [str(BIN_DIR / "initdb"), f"--pgdata={fresh}", f"--username={SUPERUSER}"]
        command += [f"--pwfile={self.directory / 'admin-password'}", "--auth=scram-sha-256"]
        command += ["--encoding=UTF8", "--locale=C.UTF-8", "--data-checksums", "--no-instructions"]
        done = subprocess.run(users.run_as(users.STORES, command), check=False, capture_output=True, text=True, cwd="/")
        if done.returncode != 0:
            raise StackError(f"cannot create the PostgreSQL cluster: {done.stderr.strip()}")
        fresh.rename(self.data)

    def _secret(self, name: str) -> str:
        path = self.directory / name
        if not path.exists():
            users.write_private(path, secrets.token_urlsafe(32), users.STORES)
        return path.read_text()

    def _clear_after_kill(self) -> None:
        """After kill -9 the pid file stays, and its number may belong to another process of the same user by
        now, which PostgreSQL takes for a live server. Server processes that have not yet noticed the death
        of their parent hold its shared memory, and no server starts beside them."""
        path = self.data / "postmaster.pid"
        members = self._server_processes()
        try:
            recorded = int(path.read_text().split("\n", 1)[0])
        except (FileNotFoundError, ValueError):
            recorded = None
        if any(process.pid == recorded for process in members):
            return
        for orphan in members:
            if not wait_gone(orphan, 5):
                end(orphan, signal.SIGQUIT, timeout=5)
        path.unlink(missing_ok=True)

    def _server_processes(self) -> list[ProcessId]:
        """Find PostgreSQL's processes by their working directory: the data directory."""
        data = str(self.data.resolve())
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.readlink(entry / "cwd") == data and (process := identify(int(entry.name))):
                    found.append(process)
        return found

    def service(self, order: int = 10) -> Service:
        options = {
            "listen_addresses": "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self.sockets),
            "max_connections": "200",
            "shared_buffers": "128MB",
            "password_encryption": "scram-sha-256",
            "log_line_prefix": "%m [%p] ",
        }
        argv = [str(BIN_DIR / "postgres"), "-D", str(self.data)]
        for name, value in options.items():
            argv += ["-c", f"{name}={value}"]
        ready = [str(BIN_DIR / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return Service(
            name="postgres",
            argv=argv,
            order=order,
            user=users.STORES,
            ready=Ready("exec", ready),
            # INT is PostgreSQL's fast shutdown; TERM would wait for clients to leave.
            stop_signal="INT",
            stop_timeout=60,
        )

    def admin_url(self, database: str = "postgres") -> str:
        return f"postgresql://{SUPERUSER}:{self._secret('admin-password')}@127.0.0.1:{self.port}/{database}"

    def database_url(self) -> str:
        return f"postgresql://{ROLE}:{self._secret('password')}@127.0.0.1:{self.port}/{DATABASE}"

    def ensure_database(self) -> None:
        with self._connect() as connection:
            role, password = sql.Identifier(ROLE), sql.Literal(self._secret("password"))
            known = connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", (ROLE,)).fetchone()
            verb = sql.SQL("ALTER" if known else "CREATE")
            connection.execute(sql.SQL("{} ROLE {} LOGIN PASSWORD {}").format(verb, role, password))
            if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", (DATABASE,)).fetchone():
                connection.execute(sql.SQL("CREATE DATABASE {} OWNER {}").format(sql.Identifier(DATABASE), role))

    def _connect(self, timeout: float = 30.0) -> psycopg.Connection[tuple[object, ...]]:
        deadline = time.monotonic() + timeout
        while True:
            try:
                return psycopg.connect(self.admin_url(), autocommit=True, connect_timeout=5)
            except psycopg.OperationalError as error:
                if time.monotonic() > deadline:
                    raise StackError(f"cannot log in to PostgreSQL on port {self.port}: {error}") from error
                time.sleep(0.05)
