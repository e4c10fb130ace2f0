"""A private OCI registry (Debian's docker-registry) for artifacts. It lets in who shows a token of the platform."""

from __future__ import annotations

import json
import re
import secrets
import subprocess
import sys
from pathlib import Path
from typing import Any

from gpuaas_contract.oci import SERVICE
from gpuaas_stack import users
from gpuaas_stack.errors import StackError
from gpuaas_stack.service import Ready, Service

BINARY = "/usr/bin/docker-registry"
ISSUER = "gpuaas"
GIB = 1 << 30


class Registry:
    def __init__(
        self,
        directory: Path,
        port: int,
        api_url: str,
        *,
        reserve_gib: float = 4,
        largest_gib: float = 100,
        ca_file: Path | None = None,
    ) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.port = port
        self._reserve, self._largest = int(reserve_gib * GIB), int(largest_gib * GIB)
        self._ca_file = ca_file
        self._socket = directory / "registry.sock"
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
        # The guard takes either, as there is room or not.
        for one in {read_only, True}:
            # JSON is YAML, too.
            config = json.dumps(self._configuration(read_only=one), indent=1)
            users.write_private(self._config(read_only=one), config, users.REGISTRY)
        users.check_reachable(Path(sys.executable).parent, users.REGISTRY)

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
                # Behind the gate of the guard, which listens on the port.
                "net": "unix",
                "addr": str(self._socket),
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
            argv=self._guarded(read_only=read_only),
            order=order,
            user=users.REGISTRY,
            # The realm is in its configuration, too. Here it makes another service of it, which is started anew.
            env={
                "HOME": str(self.data),
                "OTEL_TRACES_EXPORTER": "none",
                "REGISTRY_AUTH_TOKEN_REALM": self._realm,
                # Likewise another authority in the same file.
                **({"GPUAAS_CA_DIGEST": users.digest_of(self._ca_file)} if self._ca_file is not None else {}),
            },
            cwd=str(self.data),
            # It answers 401 to who shows no token, which is an answer.
            ready=Ready("http", f"http://127.0.0.1:{self.port}/v2/"),
        )

    def _guarded(self, *, read_only: bool) -> list[str]:
        chosen = {
            "--binary": BINARY,
            "--data": str(self.data),
            "--config": str(self._config(read_only=read_only)),
            "--read-only": str(self._config(read_only=True)),
            "--reserve": str(self._reserve),
            "--largest": str(self._largest),
            "--port": str(self.port),
            "--socket": str(self._socket),
            "--certificates": str(self.certificates),
            **({"--ca-file": str(self._ca_file)} if self._ca_file is not None else {}),
        }
        return [
            sys.executable,
            "-m",
            "gpuaas_stack.registry_guard",
            *(word for pair in chosen.items() for word in pair),
        ]

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
