"""A thin client of LXD's REST API over its unix socket. Incus speaks the same calls.

It knows LXD and nothing of allocations: what is asked for is in `slice_config`, when and why in
`slices` and `networks`.
"""

import asyncio
import contextlib
import socket
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import quote

import httpx

from gpuaas_agent.errors import LxdError, LxdUnavailableError, reason_of

OPERATION_SECONDS = 300
LIST_ATTEMPTS = 5
LIST_PAUSE = 0.1
_NO_SUBVOLUME = "Could not get subvolume flags"


@dataclass(frozen=True)
class Instance:
    name: str
    status: str
    config: dict[str, str]
    devices: dict[str, dict[str, str]]

    @property
    def running(self) -> bool:
        return self.status == "Running"


@dataclass(frozen=True)
class Network:
    name: str
    managed: bool
    config: dict[str, str]
    used_by: list[str]
    status: str = ""
    """`Created`, or `Unavailable` where LXD could not start it; ACLs have none."""


@dataclass(frozen=True)
class StoredVolume:
    name: str
    config: dict[str, str]
    used_by: list[str]


@dataclass(frozen=True)
class PushedFile:
    path: str
    content: str
    mode: int


class Lxd:
    def __init__(self, path: Path, *, answer_seconds: float = 60, operation_seconds: float = OPERATION_SECONDS) -> None:
        """`operation_seconds` is how long to wait for the end of work that LXD does in the background."""
        self._socket = path
        self._operation_seconds = operation_seconds
        self._client = httpx.AsyncClient(
            # No TLS on a local socket: reading the certificates of the host takes longer than most requests.
            transport=httpx.AsyncHTTPTransport(uds=str(path), verify=False),
            base_url="http://lxd",
            timeout=httpx.Timeout(10, read=answer_seconds, write=answer_seconds),
            # A proxy from the environment must not come between us and a local socket.
            trust_env=False,
        )

    async def aclose(self) -> None:
        await self._client.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    # Server

    async def read_server(self) -> dict[str, Any]:
        server = await self.request("GET", "/1.0")
        assert isinstance(server, dict)
        return server

    async def read_image_aliases(self) -> list[str]:
        images = await self._list("/1.0/images")
        return sorted(alias["name"] for image in images for alias in image["aliases"])

    async def read_pool_bytes(self, pool: str) -> int:
        resources = await self.request("GET", f"/1.0/storage-pools/{quote(pool, safe='')}/resources")
        return int(resources["space"]["total"])

    # Instances

    async def list_instances(self, *, all_projects: bool = False) -> list[Instance]:
        more = {"all-projects": "true"} if all_projects else {}
        return [_instance(item) for item in await self._list("/1.0/instances", **more)]

    async def find_instance(self, name: str) -> Instance | None:
        found = await self.find(f"/1.0/instances/{quote(name, safe='')}")
        return None if found is None else _instance(found)

    async def create_instance(self, body: dict[str, Any]) -> None:
        await self.request("POST", "/1.0/instances", json=body)

    async def update_instance_config(self, name: str, config: dict[str, str]) -> None:
        await self.request("PATCH", f"/1.0/instances/{quote(name, safe='')}", json={"config": config})

    async def replace_instance(self, name: str, config: dict[str, str], devices: dict[str, dict[str, str]]) -> None:
        """Merge into the instance's configuration, and give it exactly these devices, live."""
        path = f"/1.0/instances/{quote(name, safe='')}"
        found = await self.request("GET", path)
        fields = ("architecture", "description", "ephemeral", "profiles")
        body = {field: found[field] for field in fields}
        await self.request("PUT", path, json={**body, "config": {**found["config"], **config}, "devices": devices})

    async def start_instance(self, name: str) -> None:
        await self._change_state(name, {"action": "start", "timeout": 60})

    async def stop_instance(self, name: str) -> None:
        await self._change_state(name, {"action": "stop", "timeout": 60, "force": True})

    async def restart_instance(self, name: str) -> None:
        await self._change_state(name, {"action": "restart", "timeout": 30, "force": True})

    async def shut_down_instance(self, name: str, *, seconds: int) -> None:
        """Stop in order: services end, disks are synced. Fails where that takes too long."""
        await self._change_state(name, {"action": "stop", "timeout": seconds, "force": False})

    async def delete_instance(self, name: str) -> None:
        path = f"/1.0/instances/{quote(name, safe='')}"
        try:
            await self.request("DELETE", path)
        except LxdError as error:
            if _NO_SUBVOLUME not in str(error):
                raise
            await self._remove_empty_root(name)
            await self.request("DELETE", path)

    async def _remove_empty_root(self, name: str) -> None:
        """Remove the directory of an instance that LXD cannot delete: it was killed after it had made the directory and
        before the subvolume in it. LXD may have mounts of its own, so the path is taken as LXD sees it."""
        found = await self.find_instance(name)
        if found is not None:
            below = f"storage-pools/{found.devices['root']['pool']}/containers/{name}"
            where = self._socket.parent.relative_to("/") / below
            # Only an empty one: anything else is somebody's.
            with contextlib.suppress(OSError):
                await asyncio.to_thread((_root_of(self._socket) / where).rmdir)

    async def push_file(self, name: str, file: PushedFile) -> None:
        """Write a file, also into a stopped instance. LXD applies the mode only to a file that is new."""
        await self.request(
            "POST",
            f"/1.0/instances/{quote(name, safe='')}/files",
            params={"path": file.path},
            content=file.content.encode(),
            headers={
                # Without this type LXD takes the body for a form and writes an empty file.
                "Content-Type": "application/octet-stream",
                "X-LXD-type": "file",
                "X-LXD-uid": "0",
                "X-LXD-gid": "0",
                "X-LXD-mode": f"{file.mode:04o}",
            },
        )

    async def run(self, name: str, command: list[str]) -> tuple[int, str]:
        """Run a command inside a running instance; return its exit status and standard error."""
        path = f"/1.0/instances/{quote(name, safe='')}"
        body = {"command": command, "wait-for-websocket": False, "record-output": True, "interactive": False}
        done = await self.request("POST", f"{path}/exec", json=body)
        said = ""
        for stream, output in (done.get("output") or {}).items():
            if stream == "2":
                said = (await self._client.get(output)).text
            await self._client.delete(output)
        return int(done["return"]), said.strip()

    async def read_file(self, name: str, path: str) -> str:
        """Read a file, also of a stopped instance. The answer is the file itself, not an envelope."""
        try:
            answer = await self._client.get(f"/1.0/instances/{quote(name, safe='')}/files", params={"path": path})
        except httpx.TransportError as error:
            raise LxdUnavailableError(f"LXD does not answer at {self._socket}: {reason_of(error)}") from error
        if answer.is_error:
            raise LxdError(f"cannot read {path} of {name}: {answer.text.strip()}", status=answer.status_code)
        return answer.text

    async def settle_instance(self, name: str) -> None:
        """Wait for the operations of an earlier caller, perhaps one that was killed.

        Commands that run inside the instance are left out: they may last for ever.
        """
        groups = await self.request("GET", "/1.0/operations", params={"recursion": "1"})
        for operation in (groups or {}).get("running") or []:
            resources = operation.get("resources") or {}
            if operation["class"] == "task" and f"/1.0/instances/{name}" in (resources.get("instances") or []):
                try:
                    await self._wait(f"/1.0/operations/{operation['id']}")
                except LxdError:
                    continue  # How it ended shows in what exists now.

    # Networks

    async def list_networks(self) -> list[Network]:
        return [_network(item) for item in await self._list("/1.0/networks")]

    async def list_network_names(self) -> list[str]:
        return [path.rpartition("/")[2] for path in await self.request("GET", "/1.0/networks")]

    async def find_network(self, name: str) -> Network | None:
        found = await self.find(f"/1.0/networks/{quote(name, safe='')}")
        return None if found is None else _network(found)

    async def is_network_up(self, name: str) -> bool:
        """Look for the interface itself: LXD keeps the record of a bridge whose interface somebody removed."""
        return await self.find(f"/1.0/networks/{quote(name, safe='')}/state") is not None

    async def create_network(self, body: dict[str, Any]) -> None:
        await self.request("POST", "/1.0/networks", json=body)

    async def update_network_config(self, name: str, config: dict[str, str]) -> None:
        await self.request("PATCH", f"/1.0/networks/{quote(name, safe='')}", json={"config": config})

    async def delete_network(self, name: str) -> None:
        await self.request("DELETE", f"/1.0/networks/{quote(name, safe='')}")

    async def list_acls(self) -> list[Network]:
        return [_network(item) for item in await self._list("/1.0/network-acls")]

    async def create_acl(self, body: dict[str, Any]) -> None:
        await self.request("POST", "/1.0/network-acls", json=body)

    async def update_acl(self, name: str, body: dict[str, Any]) -> None:
        await self.request("PUT", f"/1.0/network-acls/{quote(name, safe='')}", json=body)

    async def delete_acl(self, name: str) -> None:
        await self.request("DELETE", f"/1.0/network-acls/{quote(name, safe='')}")

    # Custom volumes

    async def list_volumes(self, pool: str) -> list[StoredVolume]:
        return [_volume(item) for item in await self._list(_volumes(pool))]

    async def find_volume(self, pool: str, name: str) -> StoredVolume | None:
        found = await self.find(f"{_volumes(pool)}/{quote(name, safe='')}")
        return None if found is None else _volume(found)

    async def create_volume(self, pool: str, body: dict[str, Any]) -> None:
        await self.request("POST", _volumes(pool), json=body)

    async def delete_volume(self, pool: str, name: str) -> None:
        await self.request("DELETE", f"{_volumes(pool)}/{quote(name, safe='')}")

    # The wire

    async def _change_state(self, name: str, body: dict[str, Any]) -> None:
        await self.request("PUT", f"/1.0/instances/{quote(name, safe='')}/state", json=body)

    async def _list(self, path: str, **params: str) -> list[dict[str, Any]]:
        """Read a whole list. LXD answers "not found" if something in it is deleted meanwhile: then read it again."""
        for _ in range(LIST_ATTEMPTS - 1):
            try:
                return list(await self.request("GET", path, params={"recursion": "1", **params}))
            except LxdError as error:
                if "not found" not in str(error).lower():
                    raise
            await asyncio.sleep(LIST_PAUSE)
        return list(await self.request("GET", path, params={"recursion": "1", **params}))

    async def find(self, path: str) -> Any | None:
        """Read the metadata at a path, or None where there is nothing."""
        try:
            return await self.request("GET", path)
        except LxdError as error:
            if error.not_found:
                return None
            raise

    async def request(self, method: str, path: str, **arguments: Any) -> Any:
        """Send a request, wait for its background operation if there is one, and return the metadata."""
        body = await self._send(method, path, **arguments)
        if body["type"] == "async":
            return await self._wait(body["operation"])
        return body["metadata"]

    async def _send(self, method: str, path: str, **arguments: Any) -> dict[str, Any]:
        try:
            answer = await self._client.request(method, path, **arguments)
            body: dict[str, Any] = answer.json()
        except (httpx.TransportError, ValueError) as error:
            raise LxdUnavailableError(f"LXD does not answer at {self._socket}: {reason_of(error)}") from error
        if body["type"] == "error":
            raise LxdError(str(body["error"]), status=int(body["error_code"]))
        return body

    async def _wait(self, operation: str) -> Any:
        deadline = asyncio.get_running_loop().time() + self._operation_seconds
        while True:
            try:
                found = (await self._send("GET", f"{operation}/wait", params={"timeout": "20"}))["metadata"]
            except LxdError as error:
                if error.not_found:  # LXD forgets finished operations soon, and all of them at a restart.
                    raise LxdUnavailableError("LXD lost the operation that was being waited for") from error
                raise
            if found["status_code"] >= 400:
                raise LxdError(str(found["err"]), status=int(found["status_code"]))
            if found["status_code"] == 200:
                return found["metadata"]
            if asyncio.get_running_loop().time() > deadline:
                waited = f"{self._operation_seconds:.0f} s"
                raise LxdUnavailableError(f"LXD has not finished {found['description']!r} within {waited}")


def _root_of(path: Path) -> Path:
    """The file system as seen by the process that listens on the socket."""
    with socket.socket(socket.AF_UNIX) as link:
        link.connect(str(path))
        pid, _, _ = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return Path(f"/proc/{pid}/root")


def _instance(item: dict[str, Any]) -> Instance:
    return Instance(name=item["name"], status=item["status"], config=item["config"], devices=item["expanded_devices"])


def _volumes(pool: str) -> str:
    return f"/1.0/storage-pools/{quote(pool, safe='')}/volumes/custom"


def _volume(item: dict[str, Any]) -> StoredVolume:
    return StoredVolume(name=item["name"], config=item["config"] or {}, used_by=item.get("used_by") or [])


def _network(item: dict[str, Any]) -> Network:
    return Network(
        name=item["name"],
        managed=item.get("managed", True),
        config=item["config"] or {},
        used_by=item.get("used_by") or [],
        status=item.get("status", ""),
    )
