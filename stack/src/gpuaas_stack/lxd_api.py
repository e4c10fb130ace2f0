"""LXD's REST API over its socket: what the stack needs of it, and nothing of its command line."""

from __future__ import annotations

import socket
import struct
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import httpx

from gpuaas_stack.errors import StackError


class LxdApi:
    def __init__(self, path: Path) -> None:
        self.socket = path
        transport = httpx.HTTPTransport(uds=str(path))
        self._client = httpx.Client(transport=transport, base_url="http://lxd", timeout=300)

    def answers(self) -> bool:
        try:
            return self._client.get("/1.0", timeout=5).is_success
        except httpx.TransportError:
            return False

    def root(self) -> Path:
        """The file system as LXD sees it, which may have mounts of its own."""
        with socket.socket(socket.AF_UNIX) as link:
            link.connect(str(self.socket))
            pid, _, _ = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        return Path(f"/proc/{pid}/root")

    def request(self, method: str, path: str, **options: Any) -> Any:
        """Does it, waits for the operation if there is one, and returns the metadata."""
        answer = self._client.request(method, path, **options).json()
        if answer["type"] == "async":
            answer = self._client.get(f"{answer['operation']}/wait", timeout=None).json()
            if answer["type"] == "sync" and answer["metadata"]["status_code"] != 200:
                raise LxdError(method, path, int(answer["metadata"]["status_code"]), answer["metadata"]["err"])
        if answer["type"] == "error":
            raise LxdError(method, path, int(answer["error_code"]), answer["error"])
        return answer["metadata"]

    def get(self, path: str) -> Any:
        return self.request("GET", path)

    def find(self, path: str) -> Any | None:
        try:
            return self.get(path)
        except LxdError as error:
            if error.status == 404:
                return None
            raise

    def tagged(self, collection: str, key: str, value: str | None = None) -> list[dict[str, Any]]:
        """The objects of a collection whose configuration holds the tag (with that value)."""
        found = self.get(f"/1.0/{collection}?recursion=1")
        return [
            item
            for item in found
            if (mine := (item.get("config") or {}).get(key)) is not None and value in (None, mine)
        ]

    def import_image(self, metadata: Path, rootfs: Path, alias: str, properties: dict[str, str]) -> str:
        headers = {"X-LXD-properties": urlencode(properties), "X-LXD-public": "0"}
        with metadata.open("rb") as first, rootfs.open("rb") as second:
            files = {"metadata": (metadata.name, first), "rootfs": (rootfs.name, second)}
            operation = self.request("POST", "/1.0/images", headers=headers, files=files)
        fingerprint = str(operation["metadata"]["fingerprint"])
        path = f"/1.0/images/aliases/{quote(alias, safe='')}"
        if self.find(path) is None:
            self.request("POST", "/1.0/images/aliases", json={"name": alias, "target": fingerprint})
        else:
            self.request("PUT", path, json={"target": fingerprint, "description": ""})
        return fingerprint

    def patch_config(self, path: str, config: dict[str, str]) -> None:
        self.request("PATCH", path, json={"config": config})


class LxdError(StackError):
    def __init__(self, method: str, path: str, status: int, reason: str) -> None:
        super().__init__(f"cannot {method} {path} in LXD: {reason}")
        self.status = status
        self.reason = reason
