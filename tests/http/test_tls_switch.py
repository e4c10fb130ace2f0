"""One state directory, served over HTTP, then HTTPS by the embedded authority, twice, and back."""

import json
import subprocess
from pathlib import Path

import httpx
import pytest
from pydantic import SecretStr

from gpuaas_contract.trust import client_context
from gpuaas_stack.packs import program
from gpuaas_stack.platform_services import CERTIFICATE_KEEPER
from gpuaas_stack.postgres import DATABASE
from gpuaas_stack.progress import Progress
from gpuaas_stack.settings import Settings
from gpuaas_stack.stack import Stack
from tests.support.processes import fresh_database
from tests.support.services import admin_credentials, openbao_of, own_stack


class CommandLine:
    def __init__(self, home: Path, account: tuple[str, str]) -> None:
        self._environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(home),
            "GPUAAS_CONFIG": str(home / "config.yaml"),
            "GPUAAS_PASSWORD": account[1],
        }
        self._email = account[0]

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [program("gpuaas"), *words]
        return subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)

    def log_in(self, stack: Stack, *more: str) -> subprocess.CompletedProcess[str]:
        return self.run("login", "--api-url", stack.settings.api_url, "--email", self._email, *more)

    def knows_who_it_is(self, context: str) -> bool:
        shown = self.run("whoami", "--context", context, "-o", "json")
        return bool(json.loads(shown.stdout)["name"] == self._email)


def realm_of(stack: Stack) -> str:
    return httpx.get(f"{stack.settings.registry_address}/v2/").headers["www-authenticate"]


def test_one_setting_switches_everything_and_back(servers: Settings, tmp_path: Path) -> None:
    openbao, command_line = openbao_of(servers), CommandLine(tmp_path, admin_credentials(servers))
    with (
        fresh_database(servers, DATABASE) as url,
        own_stack(
            "tls", database_url=SecretStr(url), vault_addr=openbao.address, vault_token_file=openbao.token_file
        ) as plain,
    ):
        plain.ensure_platform()
        assert command_line.log_in(plain, "--context", "plain").returncode == 0
        secure = Stack(plain.settings.model_copy(update={"tls": "embedded"}), Progress())
        secure.ensure_platform()
        trusted = secure.settings.trusted_file
        assert trusted is not None
        authority = trusted.read_bytes()
        untrusting = command_line.log_in(secure, "--context", "tls")
        assert untrusting.returncode == 6
        assert "authority that is not trusted here" in untrusting.stderr
        late = command_line.run("whoami", "--context", "plain")
        assert late.returncode == 6
        assert "https://" in late.stderr, "who still asks over http is told"
        assert command_line.log_in(secure, "--context", "tls", "--ca-file", str(trusted)).returncode == 0
        assert command_line.knows_who_it_is("tls"), "the context has kept whom to trust"

        secure.ensure_platform()
        assert trusted.read_bytes() == authority, "the second time changes nothing"
        assert secure.settings.api_url.startswith("https://127.0.0.1:")
        assert f'realm="{secure.settings.api_url}/v1/registry/token"' in realm_of(secure)
        secure.supervision.wait_ready(CERTIFICATE_KEEPER)
        with pytest.raises(httpx.TransportError):
            httpx.get(f"{plain.settings.api_url}/healthz")
        with httpx.Client(verify=client_context(secure.settings.api_url, trusted)) as http:
            assert http.get(f"{secure.settings.api_url}/readyz").json() == {"status": "ready"}

        plain.ensure_platform()
        assert CERTIFICATE_KEEPER not in [state.name for state in plain.supervision.states()]
        assert f'realm="{plain.settings.api_url}/v1/registry/token"' in realm_of(plain)
        assert command_line.knows_who_it_is("plain")
        assert "does not speak TLS" in command_line.run("whoami", "--context", "tls").stderr
