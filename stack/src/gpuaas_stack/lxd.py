"""One environment's part of LXD: its storage pool, its bridges, its machines. Everything is found by tag."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Awaitable, Callable, Container
from ipaddress import IPv4Network
from pathlib import Path

from gpuaas_agent import dnsmasq
from gpuaas_agent.errors import LxdError
from gpuaas_agent.lxd import Instance, Lxd, Network
from gpuaas_agent.network_guard import CREATED, restart_network
from gpuaas_stack.errors import StackError
from gpuaas_stack.lxd_client import conversation
from gpuaas_stack.settings import ENVIRONMENT_TAG

# Set on what `down` stops, so that `up` starts exactly that again.
RESUME_KEY = "user.gpuaas.resume"
# Worse than any route of a bridge, better than the default route: it only acts while no bridge is there.
ROUTE_METRIC = "4278198272"
AT_ONCE = 8
UNAVAILABLE_SECONDS = 90


class LxdEnvironment:
    def __init__(
        self, socket: Path, environment: str, pool: str, subnet: IPv4Network, network: str | None = None
    ) -> None:
        self.socket = socket
        self.environment = environment
        self.pool = pool
        self.subnet = subnet
        self.network = network

    async def _instances(self, lxd: Lxd) -> list[Instance]:
        return [instance for instance in await lxd.list_instances() if self._is_ours(instance)]

    async def _networks(self, lxd: Lxd) -> list[Network]:
        return [network for network in await lxd.list_networks() if self._is_ours(network)]

    def _is_ours(self, tagged: Instance | Network) -> bool:
        return tagged.config.get(ENVIRONMENT_TAG) == self.environment

    @conversation("list the machines of this environment")
    async def machines(self, lxd: Lxd) -> list[Instance]:
        return await self._instances(lxd)

    # -- up ---------------------------------------------------------------------------------------------

    def ensure_route(self) -> None:
        """Keep packets for a machine whose bridge is missing from leaving through the host's uplink."""
        self._ip("route", "replace", "unreachable", str(self.subnet), "metric", ROUTE_METRIC)

    @conversation("make the storage pool")
    async def ensure_pool(self, lxd: Lxd, size: str) -> None:
        known = await lxd.find(f"/1.0/storage-pools/{self.pool}")
        if known is None:
            config = {"size": size, ENVIRONMENT_TAG: self.environment}
            pool = {"name": self.pool, "driver": "btrfs", "config": config}
            await lxd.request("POST", "/1.0/storage-pools", json=pool)
        elif known["status"] != "Created":
            raise StackError(f"cannot use the storage pool {self.pool}: it is {known['status']}")

    @conversation("start the networks again")
    async def ensure_networks_started(self, lxd: Lxd) -> None:
        """Bring back what is missing: an interface, a name server, or what LXD could not start in the place of one
        that it had lost."""
        for network in await self._networks(lxd):
            if not network.managed:
                continue
            serves = dnsmasq.is_running(self.socket.parent, network.name)
            if serves and network.status == CREATED and self.link_exists(network.name):
                continue
            if not serves:
                dnsmasq.end_all(self.socket.parent, network.name)
            await restart_network(lxd, network)
        await self._wait_until_created(lxd)

    async def _wait_until_created(self, lxd: Lxd) -> None:
        """Wait for LXD's own next attempt, which it makes every minute: until then it starts no machine on them."""
        deadline = asyncio.get_running_loop().time() + UNAVAILABLE_SECONDS
        while missing := [
            found.name for found in await self._networks(lxd) if found.managed and found.status != CREATED
        ]:
            if asyncio.get_running_loop().time() > deadline:
                raise StackError(f"cannot start the networks {', '.join(missing)}: LXD has them as unavailable")
            await asyncio.sleep(1)

    @conversation("start the machines again")
    async def ensure_instances_resumed(self, lxd: Lxd) -> list[str]:
        """Start what `down` has stopped, except what LXD has started already; return the names of both."""
        suspended = [item for item in await self._instances(lxd) if item.config.get(RESUME_KEY) == "true"]

        async def start(name: str) -> None:
            await _unless_already(lxd.start_instance(name))

        await _each([item.name for item in suspended if item.status == "Stopped"], start)
        for item in suspended:
            await lxd.update_instance_config(item.name, {RESUME_KEY: ""})
        return [item.name for item in suspended]

    @conversation("restart the machines")
    async def restart_instances(self, lxd: Lxd) -> list[str]:
        names = [item.name for item in await self._instances(lxd) if item.running]

        async def restart(name: str) -> None:
            await _unless_already(lxd.restart_instance(name))

        await _each(names, restart)
        return names

    @conversation("read the addresses of the machines")
    async def addresses(self, lxd: Lxd, names: Container[str]) -> dict[str, str]:
        """Read the pinned addresses by the name of the machine."""
        found = {}
        for item in await self._instances(lxd):
            pinned = [device["ipv4.address"] for device in item.devices.values() if "ipv4.address" in device]
            if item.name in names and pinned:
                found[item.name] = pinned[0]
        return found

    # -- down -------------------------------------------------------------------------------------------

    @conversation("stop the machines")
    async def stop_instances(self, lxd: Lxd) -> list[str]:
        return await self._stop_instances(lxd)

    async def _stop_instances(self, lxd: Lxd) -> list[str]:
        names = [item.name for item in await self._instances(lxd) if item.status != "Stopped"]

        async def suspend(name: str) -> None:
            await lxd.update_instance_config(name, {RESUME_KEY: "true"})
            try:
                await _unless_already(lxd.shut_down_instance(name, seconds=20))
            except LxdError:
                await _unless_already(lxd.stop_instance(name))

        await _each(names, suspend)
        return names

    @conversation("stop the networks")
    async def stop_networks(self, lxd: Lxd) -> list[str]:
        """Take bridges down. LXD cannot stop a network that a stopped machine refers to, so that its
        description stays and the link and its name server go; `up` brings them back."""
        networks = await self._networks(lxd)
        for network in networks:
            if not network.used_by:
                await lxd.delete_network(network.name)
            else:
                dnsmasq.end_all(self.socket.parent, network.name)
                self._ip("link", "delete", network.name, check=False)
        return [network.name for network in networks]

    def remove_route(self) -> None:
        self._ip("route", "delete", "unreachable", str(self.subnet), "metric", ROUTE_METRIC, check=False)

    # -- for good ---------------------------------------------------------------------------------------

    @conversation("delete everything of this environment")
    async def delete_everything(self, lxd: Lxd) -> list[str]:
        """Delete every machine, network, rule set, volume and the pool of this environment."""
        deleted = []
        await self._stop_instances(lxd)
        pool = await lxd.find(f"/1.0/storage-pools/{self.pool}")
        # Machines on the pool go whatever their tag: a test that was killed may have left one.
        users = (pool or {}).get("used_by") or []
        on_pool = {
            path.removeprefix("/1.0/instances/") for path in users if re.fullmatch("/1.0/instances/[^/?]+", path)
        }
        for name in sorted({item.name for item in await self._instances(lxd)} | on_pool):
            await _delete_instance(lxd, name)
            deleted.append(f"machine {name}")
        for network in await self._networks(lxd):
            await lxd.delete_network(network.name)
            deleted.append(f"network {network.name}")
        for acl in await lxd.list_acls():
            if self._is_ours(acl):
                await lxd.delete_acl(acl.name)
                deleted.append(f"network-acl {acl.name}")
        if pool is not None:
            for volume in await lxd.list_volumes(self.pool):
                await lxd.delete_volume(self.pool, volume.name)
                deleted.append(f"volume {volume.name}")
            await lxd.request("DELETE", f"/1.0/storage-pools/{self.pool}")
            deleted.append(f"storage pool {self.pool}")
        return deleted

    def link_exists(self, name: str) -> bool:
        return self._ip("link", "show", name, check=False)

    def _ip(self, *arguments: str, check: bool = True) -> bool:
        """Run `ip` where the bridges are: here, or in the network namespace of this LXD. True if it worked."""
        where = [] if self.network is None else ["-n", self.network]
        done = subprocess.run(["ip", *where, *arguments], check=False, capture_output=True, text=True)
        if check and done.returncode != 0:
            raise StackError(f"cannot run ip {' '.join(arguments)}: {done.stderr.strip()}")
        return done.returncode == 0


async def _each(names: list[str], action: Callable[[str], Awaitable[None]]) -> None:
    """Act on some at a time; one that fails keeps no other from being done."""
    room = asyncio.Semaphore(AT_ONCE)

    async def one(name: str) -> None:
        async with room:
            await action(name)

    for outcome in await asyncio.gather(*map(one, names), return_exceptions=True):
        if outcome is not None:
            raise outcome


async def _unless_already(change: Awaitable[None]) -> None:
    """Await a change that somebody else may have made meanwhile."""
    try:
        await change
    except LxdError as error:
        if "already" not in str(error):
            raise


async def _delete_instance(lxd: Lxd, name: str) -> None:
    try:
        await lxd.delete_instance(name)
    except LxdError as error:
        if "is running" not in str(error):
            raise
        # It was being started when it was stopped, on behalf of an agent that is gone by now.
        await _unless_already(lxd.stop_instance(name))
        await lxd.delete_instance(name)
