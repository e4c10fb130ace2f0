"""The bridge of each project on this node: made with its first slice, gone with its last."""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from gpuaas_agent.errors import LxdError, PermanentError
from gpuaas_agent.firewall import FirewallError
from gpuaas_agent.lxd import Instance, Lxd, Network
from gpuaas_agent.network_guard import NetworkGuard
from gpuaas_agent.slice_config import ENVIRONMENT, acl_body, check_network, network_body, network_of
from gpuaas_contract.agent_link import ProjectNetwork

log = logging.getLogger(__name__)


class NetworkManager:
    def __init__(self, lxd: Lxd, environment: str, guard: NetworkGuard) -> None:
        self._lxd = lxd
        self._environment = environment
        self._guard = guard
        self._lock = asyncio.Lock()
        self._reserved: Counter[str] = Counter()

    @asynccontextmanager
    async def reserve(self, network: ProjectNetwork) -> AsyncIterator[bool]:
        """Bring the bridge up, and keep it until the caller has made the instance that uses it.

        Yields whether the bridge had to be made or brought back.
        """
        async with self._lock:
            changed = await self._ensure(network)
            self._reserved[network.bridge] += 1
        try:
            yield changed
        finally:
            self._reserved[network.bridge] -= 1

    async def ensure_attached(self, instance: Instance) -> bool:
        """Plug a running slice whose bridge was made anew in again, without a restart."""
        interface = instance.config.get("volatile.eth0.host_name", "")
        bridge = network_of(instance).bridge
        if not interface or read_bridge_of(interface) == bridge:
            return False
        process = await asyncio.create_subprocess_exec(
            "ip", "link", "set", "dev", interface, "master", bridge, stderr=asyncio.subprocess.PIPE
        )
        _, errors = await process.communicate()
        if process.returncode:
            raise PermanentError(f"cannot attach {interface} to {bridge}: {errors.decode().strip()}")
        log.info("attached %s of %s to %s again", interface, instance.name, bridge)
        return True

    async def delete_unused(self) -> None:
        """Delete all unused bridges of this environment, those that a crash left among them."""
        async with self._lock:
            networks = await self._lxd.list_networks()
            for network in networks:
                if self._guard.is_ours(network) and not network.used_by and not self._reserved[network.name]:
                    await self._delete(network.name)
            left = await self._lxd.list_networks()
            try:
                await self._guard.follow(left)
            except FirewallError as error:
                # Rules of a bridge that is gone hurt nobody, and the guard removes them later.
                log.warning("%s", error)
            kept = {network.name for network in left}
            for acl in await self._lxd.list_acls():
                if self._guard.is_ours(acl) and acl.name not in kept:
                    await self._lxd.delete_acl(acl.name)

    async def _ensure(self, network: ProjectNetwork) -> bool:
        check_network(network)
        found = await self._lxd.find_network(network.bridge)
        if found is not None:
            self._check_ours(found, network)
        # Its rules come before the bridge, and no machine starts without them.
        async with self._guard.admit(network):
            if found is None:
                await self._ensure_acl(network)
                await self._lxd.create_network(network_body(network, self._environment))
                log.info("made bridge %s with %s", network.bridge, network.gateway_cidr)
                return True
            if await self._lxd.is_network_up(network.bridge):
                return False
            await self._guard.mend(found)
            return True

    async def _ensure_acl(self, network: ProjectNetwork) -> None:
        body = acl_body(network, self._environment)
        existing = {acl.name: acl for acl in await self._lxd.list_acls()}
        found = existing.get(network.bridge)
        if found is None:
            await self._lxd.create_acl(body)
        elif self._guard.is_ours(found):
            await self._lxd.update_acl(network.bridge, {k: v for k, v in body.items() if k != "name"})
        else:
            raise PermanentError(f"cannot use network ACL {network.bridge}: it is not of this environment")

    async def _delete(self, bridge: str) -> None:
        try:
            await self._lxd.delete_network(bridge)
        except LxdError as error:
            # Somebody took it into use in between; LXD's own check is the last word.
            if "in use" not in str(error) and not error.not_found:
                raise
        else:
            log.info("removed bridge %s", bridge)

    def _check_ours(self, found: Network, wanted: ProjectNetwork) -> None:
        if not self._guard.is_ours(found):
            owner = found.config.get(ENVIRONMENT, "nobody's environment")
            raise PermanentError(f"cannot use bridge {found.name}: it belongs to {owner}, not to {self._environment}")
        if found.config.get("ipv4.address") != wanted.gateway_cidr:
            raise PermanentError(
                f"cannot use bridge {found.name}: it has {found.config.get('ipv4.address')},"
                f" the platform wants {wanted.gateway_cidr}"
            )


def read_bridge_of(interface: str) -> str | None:
    master = Path("/sys/class/net") / interface / "master"
    return master.resolve().name if master.exists() else None
