"""One environment's part of LXD: its storage pool, its bridges, its machines. Everything is found by tag."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Container
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from gpuaas_stack.errors import StackError
from gpuaas_stack.lxd_api import LxdApi, LxdError
from gpuaas_stack.processes import end, identify
from gpuaas_stack.settings import ENVIRONMENT_TAG

# Set on what `down` stops, so that `up` starts exactly that again.
RESUME_KEY = "user.gpuaas.resume"
# Worse than any route of a bridge, better than the default route: it only acts while no bridge is there.
ROUTE_METRIC = "4278198272"


class LxdEnvironment:
    def __init__(
        self, api: LxdApi, environment: str, pool: str, subnet: IPv4Network, lxd_dir: Path, network: str | None = None
    ) -> None:
        self.api = api
        self.environment = environment
        self.pool = pool
        self.subnet = subnet
        self.lxd_dir = lxd_dir
        self.network = network

    def _tagged(self, collection: str) -> list[dict[str, Any]]:
        return self.api.tagged(collection, ENVIRONMENT_TAG, self.environment)

    # -- up ---------------------------------------------------------------------------------------------

    def ensure_route(self) -> None:
        """Packets for a machine whose bridge is missing must not leave through the host's uplink."""
        self._ip("route", "replace", "unreachable", str(self.subnet), "metric", ROUTE_METRIC)

    def ensure_pool(self, size: str) -> None:
        known = self.api.find(f"/1.0/storage-pools/{self.pool}")
        if known is None:
            config = {"size": size, ENVIRONMENT_TAG: self.environment}
            self.api.request(
                "POST", "/1.0/storage-pools", json={"name": self.pool, "driver": "btrfs", "config": config}
            )
        elif known["status"] != "Created":
            raise StackError(f"cannot use the storage pool {self.pool}: it is {known['status']}")

    def ensure_networks_started(self) -> None:
        for network in self._tagged("networks"):
            if network["managed"] and not self.link_exists(network["name"]):
                self._restart_network(network)

    def _restart_network(self, network: dict[str, Any]) -> None:
        """LXD has no verb for it, but sets a bridge up again when a setting other than a tag changes."""
        path = f"/1.0/networks/{network['name']}"
        before = network["config"].get("ipv4.dhcp.expiry", "")
        self.api.patch_config(path, {"ipv4.dhcp.expiry": "61m"})
        self.api.patch_config(path, {"ipv4.dhcp.expiry": before})

    def ensure_instances_resumed(self) -> list[str]:
        """Start what `down` has stopped, except what LXD has started already; return the names of both."""
        suspended = [item for item in self._tagged("instances") if item["config"].get(RESUME_KEY) == "true"]
        self._each([item["name"] for item in suspended if item["status"] == "Stopped"], self._start)
        for item in suspended:
            self.api.patch_config(f"/1.0/instances/{item['name']}", {RESUME_KEY: ""})
        return [str(item["name"]) for item in suspended]

    def _start(self, name: str) -> None:
        self._set_state(name, {"action": "start", "timeout": 60})

    def restart_instances(self) -> list[str]:
        names = [item["name"] for item in self._tagged("instances") if item["status"] == "Running"]
        self._each(names, lambda name: self._set_state(name, {"action": "restart", "timeout": 30, "force": True}))
        return names

    def addresses(self, names: Container[str]) -> dict[str, str]:
        """By the name of the machine, of those that have a pinned address."""
        found = {}
        for item in self._tagged("instances"):
            pinned = [d["ipv4.address"] for d in item["expanded_devices"].values() if "ipv4.address" in d]
            if item["name"] in names and pinned:
                found[str(item["name"])] = str(pinned[0])
        return found

    # -- down -------------------------------------------------------------------------------------------

    def stop_instances(self) -> list[str]:
        names = [item["name"] for item in self._tagged("instances") if item["status"] != "Stopped"]
        self._each(names, self._suspend)
        return names

    def _suspend(self, name: str) -> None:
        self.api.patch_config(f"/1.0/instances/{name}", {RESUME_KEY: "true"})
        try:
            self._set_state(name, {"action": "stop", "timeout": 20})
        except LxdError:
            self._set_state(name, {"action": "stop", "force": True, "timeout": 20})

    def stop_networks(self) -> list[str]:
        """Takes bridges down. LXD cannot stop a network that a stopped machine refers to, so that its
        description stays and the link and its name server go; `up` brings them back."""
        stopped = []
        for network in self._tagged("networks"):
            name = str(network["name"])
            if not network["used_by"]:
                self.api.request("DELETE", f"/1.0/networks/{name}")
            else:
                self._end_dnsmasq(name)
                self._ip("link", "delete", name, check=False)
            stopped.append(name)
        return stopped

    def _end_dnsmasq(self, network: str) -> None:
        path = self.lxd_dir / "networks" / network / "dnsmasq.pid"
        if not path.exists():
            return
        pid = next(int(line.split(":")[1]) for line in path.read_text().splitlines() if line.startswith("pid:"))
        process = identify(pid)
        command = Path(f"/proc/{pid}/cmdline")
        if process and f"--interface={network}".encode() in command.read_bytes():
            end(process)

    def remove_route(self) -> None:
        self._ip("route", "delete", "unreachable", str(self.subnet), "metric", ROUTE_METRIC, check=False)

    # -- for good ---------------------------------------------------------------------------------------

    def delete_everything(self) -> list[str]:
        """Deletes every machine, network, rule set, volume and the pool of this environment."""
        deleted = []
        self.stop_instances()
        for name in sorted({str(item["name"]) for item in self._tagged("instances")} | self._on_pool()):
            self._delete_instance(name)
            deleted.append(f"machine {name}")
        for kind in ("networks", "network-acls"):
            for item in self._tagged(kind):
                self.api.request("DELETE", f"/1.0/{kind}/{item['name']}")
                deleted.append(f"{kind.removesuffix('s')} {item['name']}")
        if self.api.find(f"/1.0/storage-pools/{self.pool}"):
            for volume in self.api.get(f"/1.0/storage-pools/{self.pool}/volumes/custom?recursion=1"):
                self.api.request("DELETE", f"/1.0/storage-pools/{self.pool}/volumes/custom/{volume['name']}")
                deleted.append(f"volume {volume['name']}")
            self.api.request("DELETE", f"/1.0/storage-pools/{self.pool}")
            deleted.append(f"storage pool {self.pool}")
        return deleted

    def _on_pool(self) -> set[str]:
        """The machines that live on the pool, of whatever tag: a test that was killed may have left one."""
        users = (self.api.find(f"/1.0/storage-pools/{self.pool}") or {}).get("used_by") or []
        return {path.removeprefix("/1.0/instances/") for path in users if re.fullmatch("/1.0/instances/[^/?]+", path)}

    def _delete_instance(self, name: str) -> None:
        try:
            self.api.request("DELETE", f"/1.0/instances/{name}")
        except LxdError as error:
            if "is running" in error.reason:
                # It was being started when it was stopped, on behalf of an agent that is gone by now.
                self._set_state(name, {"action": "stop", "force": True, "timeout": 30})
            elif "Could not get subvolume flags" in error.reason:
                # LXD was killed after it had made the directory and before the subvolume in it.
                directory = self.lxd_dir / "storage-pools" / self.pool / "containers" / name
                (self.api.root() / directory.relative_to("/")).rmdir()
            else:
                raise
            self.api.request("DELETE", f"/1.0/instances/{name}")

    def machines(self) -> list[dict[str, Any]]:
        return self._tagged("instances")

    def _set_state(self, name: str, body: dict[str, Any]) -> None:
        try:
            self.api.request("PUT", f"/1.0/instances/{name}/state", json=body)
        except LxdError as error:
            if "already" not in error.reason:
                raise

    @staticmethod
    def _each(names: list[str], action: Any) -> None:
        with ThreadPoolExecutor(max_workers=8) as pool:
            for future in [pool.submit(action, name) for name in names]:
                future.result()

    def link_exists(self, name: str) -> bool:
        return self._ip("link", "show", name, check=False)

    def _ip(self, *arguments: str, check: bool = True) -> bool:
        """Where the bridges are: on this machine, or in the network namespace of its LXD. Says whether it worked."""
        where = [] if self.network is None else ["-n", self.network]
        done = subprocess.run(["ip", *where, *arguments], check=False, capture_output=True, text=True)
        if check and done.returncode != 0:
            raise StackError(f"cannot run ip {' '.join(arguments)}: {done.stderr.strip()}")
        return done.returncode == 0
