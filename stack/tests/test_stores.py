"""PostgreSQL and OpenBao for real, in a state directory and on ports of their own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx
import psycopg
import pytest

from gpuaas_stack import users
from gpuaas_stack.openbao import OpenBao
from gpuaas_stack.postgres import DATABASE, ROLE, Postgres
from gpuaas_stack.supervision import Supervision


def start_postgres(supervision: Supervision, postgres: Postgres) -> int:
    postgres.prepare()
    supervision.ensure_running()
    supervision.ensure_service(postgres.service())
    state = supervision.wait_ready("postgres")
    postgres.ensure_database()
    assert state.process is not None
    return state.process.pid


def test_postgres(supervision: Supervision, state_dir: Path, free_port: Callable[[], int]) -> None:
    postgres = Postgres(state_dir / "postgres", free_port())
    start_postgres(supervision, postgres)
    with psycopg.connect(postgres.database_url()) as connection:
        row = connection.execute("SELECT current_database(), current_user, current_setting('is_superuser')")
        assert row.fetchone() == (DATABASE, ROLE, "off")
        connection.execute("CREATE TABLE kept (n int)")
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(postgres.database_url(), password="wrong")
    assert (postgres.directory / "password").stat().st_mode & 0o077 == 0

    # Killed with its supervisor, its pid file now names a live process of the same user.
    processes = [state.process for state in supervision.states()]
    daemon = supervision.running()
    assert daemon is not None
    for process in (daemon, *processes):
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
    stranger = subprocess.Popen(users.run_as(users.STORES, ["sleep", "60"]))
    try:
        pid_file = postgres.data / "postmaster.pid"
        rest = pid_file.read_text().split("\n", 1)[1]
        pid_file.write_text(f"{stranger.pid}\n{rest}")
        supervision.ensure_stopped()
        start_postgres(supervision, postgres)
        with psycopg.connect(postgres.database_url()) as connection:
            assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)
    finally:
        stranger.kill()
        stranger.wait()


def start_openbao(supervision: Supervision, openbao: OpenBao) -> None:
    openbao.prepare()
    supervision.ensure_running()
    supervision.ensure_service(openbao.service())
    supervision.wait_ready("openbao")


def test_openbao(supervision: Supervision, state_dir: Path, free_port: Callable[[], int]) -> None:
    openbao = OpenBao(state_dir / "openbao", free_port(), free_port())
    start_openbao(supervision, openbao)
    assert not openbao.lost_its_root()
    openbao.configure()
    token = openbao.token_file.read_text()
    for secret in (openbao.token_file, openbao.root_file, openbao.directory / "seal.key"):
        assert secret.stat().st_mode & 0o077 == 0

    headers = {"X-Vault-Token": token}
    with httpx.Client(base_url=f"{openbao.address}/v1/", headers=headers, trust_env=False) as platform:
        # What the platform may do.
        assert platform.post("sys/mounts/ssh/prj_1", json={"type": "ssh"}).is_success
        answer = platform.post("ssh/prj_1/config/ca", json={"generate_signing_key": True, "key_type": "ed25519"})
        assert answer.json()["data"]["public_key"].startswith("ssh-ed25519 ")
        assert platform.post("kv/data/x", json={"data": {"a": "b"}}).is_success
        assert platform.post("transit/keys/k", json={"type": "ed25519"}).is_success
        wrapped = platform.get("kv/data/x", headers={"X-Vault-Wrap-TTL": "60s"}).json()["wrap_info"]["token"]
        assert platform.post("sys/wrapping/unwrap", json={"token": wrapped}).is_success
        assert platform.delete("sys/mounts/ssh/prj_1").is_success
        # What it may not.
        assert platform.post("sys/mounts/other", json={"type": "kv"}).status_code == 403
        assert platform.get("sys/policies/acl/root").status_code == 403
        assert platform.post("auth/token/create", json={}).status_code == 403

        # A restart needs nobody, and neither set-up nor token change.
        supervision.remove_service("openbao")
        start_openbao(supervision, openbao)
        openbao.configure()
        assert openbao.token_file.read_text() == token
        assert platform.get("kv/data/x").json()["data"]["data"] == {"a": "b"}
    assert "kv/data/x" in (openbao.directory / "audit" / "audit.log").read_text()

    # Killed between initialisation and the note of its root token: seen, and begun anew.
    openbao.root_file.unlink()
    openbao.token_file.unlink()
    assert openbao.lost_its_root()
    supervision.remove_service("openbao")
    shutil.rmtree(openbao.data)
    start_openbao(supervision, openbao)
    openbao.configure()
    assert openbao.token_file.read_text() != token
