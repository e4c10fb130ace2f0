"""A stack with a PostgreSQL or an OpenBao that somebody else started: named by one setting, never touched otherwise."""

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_stack import platform_services
from gpuaas_stack.errors import StackError
from gpuaas_stack.openbao import OpenBao
from gpuaas_stack.packs import program
from gpuaas_stack.settings import Settings
from gpuaas_stack.stack import Stack
from tests.support.artifacts import promoted
from tests.support.database import connect
from tests.support.ports import free_port
from tests.support.processes import fresh_database
from tests.support.services import admin_credentials, openbao_of, own_stack
from tests.support.waiting import wait_until


def running(stack: Stack) -> set[str]:
    return {state.name for state in stack.supervision.states() if state.running}


async def works(settings: Settings) -> str:
    """It is ready, somebody can log in and change something; returns the id of what was made."""
    async with httpx.AsyncClient(base_url=settings.api_url) as http:
        assert (await http.get("/readyz")).json() == {"status": "ready"}
    async with GpuaasClient(settings.api_url, PasswordCredentials(*admin_credentials(settings))) as admin:
        made = await admin.tenants.create("first")
        assert (await admin.tenants.get(made.id)).name == "first"
        return made.id


async def test_a_database_of_ones_own_is_migrated_by_command_only(
    servers: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with fresh_database(servers) as url:
        monkeypatch.setenv("GPUAAS_DATABASE_URL", url)
        with own_stack("own-db", database_url=Settings().database_url) as stack:
            with pytest.raises(StackError, match="`gpuaas-platform migrate` with this GPUAAS_DATABASE_URL first"):
                stack.ensure_platform()
            assert running(stack) == set()
            assert _tables(stack.settings) == []
            _migrate(url)
            stack.ensure_platform()
            assert running(stack) == {"openbao", "registry", "api"}
            assert not (stack.settings.state_dir / "postgres").exists()
            made = await works(stack.settings)
            with connect(stack.settings) as database:
                assert database.execute("SELECT id FROM tenants").fetchall() == [(made,)]


def _migrate(url: str) -> None:
    """With nothing else set: a migration needs no secrets server."""
    command = [program("gpuaas-platform"), "migrate"]
    subprocess.run(command, env={"GPUAAS_DATABASE_URL": url}, check=True, capture_output=True)


def _tables(settings: Settings) -> list[tuple[object, ...]]:
    with connect(settings) as database:
        return database.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()


def test_a_database_that_does_not_answer_is_named_at_once() -> None:
    url = f"postgresql://nobody:nothing-to-tell@127.0.0.1:{free_port()}/none"
    with own_stack("own-db", database_url=url) as stack:
        with pytest.raises(StackError, match="cannot reach the database") as refused:
            stack.ensure_platform()
        assert "nothing-to-tell" not in str(refused.value)
        assert "Traceback" not in str(refused.value)


def _renewals(openbao: OpenBao) -> int:
    return (openbao.directory / "audit" / "audit.log").read_text().count('"path":"auth/token/renew-self"')


async def test_a_secrets_server_of_ones_own(servers: Settings, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    openbao = openbao_of(servers)
    monkeypatch.setenv("GPUAAS_VAULT_ADDR", openbao.address)
    monkeypatch.setenv("GPUAAS_VAULT_TOKEN_FILE", str(openbao.token_file))
    named = Settings()
    before = _renewals(openbao)
    with own_stack("own-bao", vault_addr=named.vault_addr, vault_token_file=named.vault_token_file) as stack:
        stack.ensure_platform()
        assert running(stack) == {"postgres", "registry", "api"}
        assert not (stack.settings.state_dir / "openbao").exists()
        await works(stack.settings)
        wait_until(lambda: _renewals(openbao) > before, "the API has renewed its token")
    private = tmp_path / "token"
    private.write_text(openbao.token_file.read_text())
    private.chmod(0o600)
    with (
        own_stack("own-bao", vault_addr=named.vault_addr, vault_token_file=private) as stack,
        pytest.raises(StackError, match="gpuaas-api cannot read"),
    ):
        stack.ensure_platform()


async def test_a_registry_of_ones_own(tmp_path: Path) -> None:
    """As docs/own-servers.md says: any registry that believes the platform's tokens."""
    port = free_port()
    with own_stack("own-registry", registry_url=f"http://127.0.0.1:{port}") as stack:
        stack.ensure_platform()
        assert running(stack) == {"postgres", "openbao", "api"}
        assert not stack.settings.registry_dir.exists()
        await works(stack.settings)
        with _registry(stack, port, tmp_path):
            credentials = PasswordCredentials(*admin_credentials(stack.settings))
            async with GpuaasClient(stack.settings.api_url, credentials) as admin:
                assert (await admin.registry.get()).url == f"http://127.0.0.1:{port}"
                made = await promoted(admin, b"elsewhere", app_slug="one")
                hexadecimal = made.content_digest.removeprefix("sha256:")
                (blob,) = (tmp_path / "data").rglob(f"blobs/sha256/*/{hexadecimal}/data")
                assert blob.read_bytes() == b"elsewhere"
                await admin.artifacts.retire(made.id)
                await admin.artifacts.delete(made.id)
        with pytest.raises(StackError, match="a registry that is not ours"):
            stack.collect_garbage()


@contextmanager
def _registry(stack: Stack, port: int, directory: Path) -> Iterator[None]:
    """Debian's, started by somebody else."""
    certificates = platform_services.registry_certificates(stack.openbao.address, stack.openbao.token_file)
    (directory / "gpuaas.pem").write_text(certificates)
    token = {
        "realm": f"{stack.settings.api_url}/v1/registry/token",
        "service": "gpuaas-registry",
        "issuer": "gpuaas",
        "rootcertbundle": str(directory / "gpuaas.pem"),
    }
    config = {
        "version": 0.1,
        "storage": {"filesystem": {"rootdirectory": str(directory / "data")}, "delete": {"enabled": True}},
        "http": {"addr": f"127.0.0.1:{port}", "secret": "of uploads"},
        "auth": {"token": token},
    }
    (directory / "config.yml").write_text(json.dumps(config))
    command = ["docker-registry", "serve", str(directory / "config.yml")]
    with (directory / "log").open("w") as log, subprocess.Popen(command, stdout=log, stderr=log) as registry:
        try:
            wait_until(lambda: is_taken(port), "the registry answers")
            yield
        finally:
            registry.kill()


def is_taken(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
