"""Keep the networks of this node as they are wanted: the firewall in force, each bridge up with its name server.

What differs is told to the platform first, which gives the node no new machines until it is mended, and then mended."""

import asyncio
import logging
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from gpuaas_agent import dnsmasq
from gpuaas_agent.errors import AgentError, LxdError, LxdUnavailableError, PermanentError
from gpuaas_agent.firewall import Firewall, FirewallError
from gpuaas_agent.lxd import Lxd, Network
from gpuaas_agent.slice_config import ENVIRONMENT, check_network
from gpuaas_contract.agent_link import CONDITIONS_AT_MOST, ProjectNetwork
from gpuaas_contract.nodes import NodeCondition

log = logging.getLogger(__name__)

CREATED = "Created"
FULL_LOOK_SECONDS = 10
"""To list networks with their use is work for LXD: it is asked for their names only, unless something is new."""
Report = Callable[[list[NodeCondition]], None]


class NetworkGuard:
    def __init__(self, lxd: Lxd, lxd_dir: Path, environment: str, firewall: Firewall, report: Report) -> None:
        self._lxd = lxd
        self._lxd_dir = lxd_dir
        self._environment = environment
        self._firewall = firewall
        self._report = report
        self._bridges = firewall.read_bridges()
        self._coming: set[str] = set()
        """Bridges that are being made: LXD does not name them yet."""
        self._changes = 0
        self._turn = asyncio.Lock()
        self._suspects: set[str] = set()
        self._names: set[str] = set()
        self._full_look_at = 0.0
        self.conditions: list[NodeCondition] = []
        self.on_mended: Callable[[], None] = lambda: None
        """Called when the guard has mended a bridge: running machines may have to be plugged in again."""

    def is_ours(self, network: Network) -> bool:
        return network.managed and network.config.get(ENVIRONMENT) == self._environment

    async def start(self) -> None:
        """Close what is known from before, without waiting for LXD."""
        try:
            async with self._turn:
                difference = await asyncio.to_thread(self._firewall.ensure, self._bridges)
            log.info("the firewall is in force%s", f": {difference}" if difference else "")
        except FirewallError as error:
            self._tell([NodeCondition(kind="firewall", message=str(error)[:500])])

    @asynccontextmanager
    async def admit(self, network: ProjectNetwork) -> AsyncIterator[None]:
        """Put the rules of a bridge in force, and keep them while the caller makes it."""
        self._coming.add(network.bridge)
        try:
            async with self._turn:
                # Also where they were wanted before: what is wanted need not be in force.
                await self._put_in_force({**self._bridges, network.bridge: network.gateway_cidr})
            yield
        finally:
            self._coming.discard(network.bridge)
            self._changes += 1

    async def follow(self, networks: list[Network]) -> None:
        """Keep rules for exactly the bridges that LXD has, and for those that are coming."""
        bridges = {network.name: gateway_of(network) for network in networks if self.is_ours(network)}
        async with self._turn:
            coming = {name: gateway for name, gateway in self._bridges.items() if name in self._coming}
            if bridges | coming != self._bridges:
                await self._put_in_force(bridges | coming)

    async def _put_in_force(self, bridges: dict[str, str | None]) -> None:
        """The caller has the turn."""
        self._changes += 1
        self._bridges = bridges
        await asyncio.to_thread(self._firewall.ensure, bridges)

    async def run(self, interval: float) -> None:
        while True:
            try:
                await self.check()
            except Exception as error:
                log.exception("bug: the networks are not watched")
                self._tell([NodeCondition(kind="network", message=f"the agent has a bug: {error!r}"[:500])])
            await asyncio.sleep(interval)

    async def check(self) -> None:
        """Compare once, and mend what differs."""
        found = await self._check_firewall()
        try:
            found += await self._check_networks()
        except LxdUnavailableError as error:
            # The rules hold without LXD. Whether its networks came back is seen when it answers again.
            log.warning("cannot look at the networks: %s", error)
            found += [condition for condition in self.conditions if condition.kind == "network"]
        except AgentError as error:
            found.append(NodeCondition(kind="network", message=f"cannot look at the networks: {error}"[:500]))
        self._tell(found)

    async def _check_firewall(self) -> list[NodeCondition]:
        try:
            async with self._turn:
                difference = await asyncio.to_thread(self._firewall.compare, self._bridges)
                if difference:
                    words = f"the firewall of this node is not as wanted: {difference}; its agent puts it back"
                    self._tell([NodeCondition(kind="firewall", message=words[:500])])
                    await asyncio.to_thread(self._firewall.ensure, self._bridges)
        except FirewallError as error:
            return [NodeCondition(kind="firewall", message=str(error)[:500])]
        return []

    async def _check_networks(self) -> list[NodeCondition]:
        changes, names = self._changes, set(await self._lxd.list_network_names())
        due = asyncio.get_running_loop().time() >= self._full_look_at
        if (
            names == self._names
            and not due
            and not self._suspects
            and not any(map(self._lacks, self._bridges.keys() - self._coming))
        ):
            return []
        networks = [network for network in await self._lxd.list_networks() if self.is_ours(network)]
        if changes != self._changes:
            # A bridge was made or removed meanwhile: look again next time.
            return [condition for condition in self.conditions if condition.kind == "network"]
        self._names, self._full_look_at = names, asyncio.get_running_loop().time() + FULL_LOOK_SECONDS
        await self.follow(networks)
        here = [network for network in networks if network.name not in self._coming]
        faults = {network.name: fault for network in here if (fault := self.find_fault(network))}
        # Seen twice: LXD itself stops a name server for a moment when it changes or starts a network.
        confirmed = {name: fault for name, fault in faults.items() if name in self._suspects}
        self._suspects = set(faults)
        conditions = [
            NodeCondition(kind="network", message=f"bridge {name}: {fault}; its agent brings it back"[:500])
            for name, fault in confirmed.items()
        ]
        if conditions:
            self._tell(conditions)
        for network in networks:
            if network.name in confirmed:
                try:
                    await self.mend(network)
                    self.on_mended()
                except LxdError as error:
                    log.error("cannot bring bridge %s back: %s", network.name, error)
        return conditions

    def find_fault(self, network: Network) -> str:
        """Say what is wrong with a bridge; empty where nothing is."""
        lacks = self._lacks(network.name)
        return lacks or ("" if network.status == CREATED else f"LXD has it as {network.status.lower()}")

    def _lacks(self, bridge: str) -> str:
        """The same without asking LXD."""
        if not has_interface(bridge):
            return "its interface is missing"
        if self._bridges.get(bridge) is None or dnsmasq.is_running(self._lxd_dir, bridge):
            return ""
        return "its name server does not run"

    async def mend(self, network: Network) -> None:
        """Bring a bridge back. Where LXD had failed to start it, LXD itself has it as created again within a minute."""
        if not self._lacks(network.name):
            return
        if not dnsmasq.is_running(self._lxd_dir, network.name):
            ended = await asyncio.to_thread(dnsmasq.end_all, self._lxd_dir, network.name)
            if ended:
                log.warning("ended name servers of %s that LXD had lost: %s", network.name, ended)
        await restart_network(self._lxd, network)
        log.info("brought bridge %s back", network.name)

    def _tell(self, conditions: list[NodeCondition]) -> None:
        conditions = conditions[:CONDITIONS_AT_MOST]
        if conditions != self.conditions:
            for condition in conditions:
                log.error("%s", condition.message)
            if not conditions:
                log.info("the networks are as wanted again")
            self.conditions = conditions
            self._report(conditions)


async def restart_network(lxd: Lxd, network: Network) -> None:
    """LXD sets a network up again with a change of its configuration, and with nothing less."""
    expiry = "2h" if network.config.get("ipv4.dhcp.expiry", "1h") == "1h" else "1h"
    await lxd.update_network_config(network.name, {"ipv4.dhcp.expiry": expiry})


def has_interface(name: str) -> bool:
    """The agent is in the network namespace of its LXD."""
    try:
        socket.if_nametoindex(name)
    except OSError:
        return False
    return True


def gateway_of(network: Network) -> str | None:
    """The gateway of a bridge; None where it is not one that a machine may talk to."""
    gateway = network.config.get("ipv4.address", "")
    try:
        check_network(ProjectNetwork(owner_id="", bridge=network.name, gateway_cidr=gateway))
    except PermanentError:
        return None
    return gateway
