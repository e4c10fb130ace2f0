"""A private OCI registry (Debian's docker-registry) for artifacts. It lets in who shows a token of the platform."""

from __future__ import annotations

import json
import re
import secrets
import subprocess
from pathlib import Path
from typing import Any

from gpuaas_contract.oci import SERVICE
from gpuaas_stack import users
from gpuaas_stack.errors import StackError
from gpuaas_stack.service import Ready, Service

BINARY = "/usr/bin/docker-registry"
ISSUER = "gpuaas"


class Registry:
    def __init__(self, directory: Path, port: int, api_url: str) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.port = port
        self.certificates = directory / "certificates.pem"
        self._realm = f"{api_url}/v1/registry/token"
        self._secret = directory / "secret"
        self.shared_secret = directory / "secret-of-uploads"

    def trust(self, certificates: str) -> None:
        """Trust tokens that were signed with the keys in these certificates."""
        users.ensure_dir(self.directory, users.REGISTRY, 0o700)
        users.write_private(self.certificates, certificates, users.REGISTRY)

    def prepare(self, *, read_only: bool) -> None:
        # The API looks here, and nowhere else, how far an upload has come.
        users.ensure_dir(self.directory, users.REGISTRY, 0o710, group=users.API)
        users.ensure_dir(self.data, users.REGISTRY, 0o750, group=users.API)
        users.check_reachable(self.data, users.REGISTRY)
        if not self._secret.exists():
            # Of uploads under way: the same after a restart, so that they go on.
            users.write_private(self._secret, secrets.token_hex(32), users.REGISTRY)
        users.write_private(self.shared_secret, self._secret.read_text(), users.API)
        # JSON is YAML, too.
        config = json.dumps(self._configuration(read_only=read_only), indent=1)
        users.write_private(self._config(read_only=read_only), config, users.REGISTRY)

    def _config(self, *, read_only: bool) -> Path:
        # A name for each, so that the supervisor sees another service and starts it anew.
        return self.directory / ("read-only.yml" if read_only else "config.yml")

    def _configuration(self, *, read_only: bool) -> dict[str, Any]:
        maintenance = {"uploadpurging": {"enabled": True, "age": "168h", "interval": "24h", "dryrun": False}}
        return {
            "version": "0.1",
            "log": {"level": "warn", "formatter": "json", "accesslog": {"disabled": True}},
            "storage": {
                "filesystem": {"rootdirectory": str(self.data)},
                "delete": {"enabled": True},
                "maintenance": {**maintenance, "readonly": {"enabled": read_only}},
                "redirect": {"disable": True},
            },
            "http": {
                "addr": f"127.0.0.1:{self.port}",
                "secret": self._secret.read_text(),
                # Locations are given without an address, so that whoever came through a proxy goes on through it.
                "relativeurls": True,
                "headers": {"X-Content-Type-Options": ["nosniff"]},
            },
            "auth": {
                "token": {
                    "realm": self._realm,
                    "service": SERVICE,
                    "issuer": ISSUER,
                    "rootcertbundle": str(self.certificates),
                }
            },
        }

    def service(self, *, read_only: bool = False, order: int = 25) -> Service:
        return Service(
            name="registry",
            argv=[BINARY, "serve", str(self._config(read_only=read_only))],
            order=order,
            user=users.REGISTRY,
            env={"HOME": str(self.data), "OTEL_TRACES_EXPORTER": "none"},
            cwd=str(self.data),
            # It answers 401 to who shows no token, which is an answer.
            ready=Ready("http", f"http://127.0.0.1:{self.port}/v2/"),
        )

    def collect_garbage(self) -> str:
        """Free unused blobs, while the registry is read-only: a push between mark and sweep would lose its own."""
        if not (self.data / "docker" / "registry" / "v2" / "repositories").is_dir():
            return "nothing to free: nothing was ever pushed"
        command = [BINARY, "garbage-collect", str(self._config(read_only=True))]
        done = subprocess.run(
            users.run_as(users.REGISTRY, command), check=False, capture_output=True, text=True, cwd=self.data
        )
        if done.returncode != 0:
            raise StackError(f"cannot collect garbage: {done.stderr.strip()[-2000:]}")
        found = re.search(r"(\d+) blobs marked, (\d+) blobs", done.stdout + done.stderr)
        return f"{found[2]} blobs freed, {found[1]} kept" if found else "nothing to free"
