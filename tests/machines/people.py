"""People who log in to machines: each with a command line and an API client of their own."""

import os
import secrets
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from gpuaas_stack.stack import Stack
from tests.e2e.command_line import CommandLine

PASSWORD = "a long enough password"


@dataclass
class Person:
    email: str
    cli: CommandLine
    api: httpx.Client
    home: Path
    token: str
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    def environment(self) -> dict[str, str]:
        program = Path(sys.executable).parent
        path = f"{program}:{os.environ['PATH']}"
        return {"HOME": str(self.home), "PATH": path, "GPUAAS_API_URL": str(self.api.base_url), "LC_ALL": "C.UTF-8"}

    def access(self, allocation_id: str, public_key: str, **more: Any) -> dict[str, Any]:
        answer = self.api.post(f"/v1/allocations/{allocation_id}/access", json={"public_key": public_key, **more})
        assert answer.status_code == 200, answer.text
        return dict(answer.json())

    def start(self, *words: str, **more: Any) -> subprocess.Popen[str]:
        """Ended with the test, at the latest."""
        process = subprocess.Popen(
            words,
            env=self.environment() | more.pop("env", {}),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **more,
        )
        self.processes.append(process)
        return process

    def run(self, *words: str, env: dict[str, str] | None = None, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words,
            env=self.environment() | (env or {}),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=5)
        self.api.close()


def log_in(stack: Stack, home: Path, email: str, password: str) -> Person:
    home.mkdir(parents=True, exist_ok=True)
    cli = CommandLine(home)
    url = stack.settings.api_url
    cli.run("login", "--api-url", url, "--email", email, "--password-stdin", stdin=password)
    answer = httpx.post(f"{url}/v1/auth/login", json={"email": email, "password": password})
    token = str(answer.json()["access_token"])
    api = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {token}"}, timeout=30)
    return Person(email, cli, api, home, token)


def make_person(stack: Stack, admin: CommandLine, home: Path, name: str, role: str = "project_member") -> Person:
    email = f"{name}-{secrets.token_hex(3)}@example.com"
    admin.run("user", "create", email, "--password-stdin", stdin=PASSWORD)
    admin.run("membership", "create", email, role, "--project", "research")
    return log_in(stack, home / name, email, PASSWORD)


@dataclass
class SshFiles:
    """A key, a certificate and what is believed of hosts: for plain ssh, put together as a test needs it."""

    directory: Path

    def key(self, name: str = "key") -> str:
        file = self.directory / name
        if not file.exists():
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "", "-f", str(file)]
            subprocess.run(words, check=True, stdin=subprocess.DEVNULL)
        return (self.directory / f"{name}.pub").read_text().strip()

    def words(
        self,
        allocation_id: str,
        login: str,
        stream: dict[str, Any],
        *,
        certificate: str | None,
        key: str = "key",
        authorities: list[str] | None = None,
        principal: str | None = None,
    ) -> list[str]:
        """`stream` is the access whose stream carries it; the certificate may be of another one, or none."""
        hosts = self.directory / f"hosts-{secrets.token_hex(4)}"
        believed = authorities or stream["host_authority"].splitlines()
        hosts.write_text("".join(f"@cert-authority {principal or allocation_id} {line}\n" for line in believed))
        proxy = f"{sys.executable} -m gpuaas_cli.ssh_proxy {stream['id']} {allocation_id}"
        settings = {
            "ProxyCommand": proxy,
            "IdentityFile": self.directory / key,
            "IdentitiesOnly": "yes",
            "HostKeyAlias": principal or allocation_id,
            "UserKnownHostsFile": hosts,
            "GlobalKnownHostsFile": "/dev/null",
            "StrictHostKeyChecking": "yes",
            "BatchMode": "yes",
            "LogLevel": "INFO",
        }
        if certificate is not None:
            file = self.directory / f"{secrets.token_hex(4)}-cert.pub"
            file.write_text(certificate + "\n")
            settings["CertificateFile"] = file
        flags = [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]
        return ["ssh", "-F", "/dev/null", *flags, "-l", login, "--", allocation_id]
