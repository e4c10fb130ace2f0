"""The firewall of one environment: an nftables table of its own, which does not depend on LXD.

Its chains come before LXD's and accept by default: they refuse only what comes from or goes to the bridges and the
range of this environment, so that the host's own traffic and other people's bridges are left alone. A machine reaches
the machines on its own bridge, and of its own gateway DNS and DHCP. The table stays when the agent ends or dies.
"""

import fcntl
import ipaddress
import json
import logging
import re
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpuaas_agent.errors import RetryLaterError
from gpuaas_agent.files import write_atomically

log = logging.getLogger(__name__)

PRIORITY = -10
"""Before LXD's chains, which are at 0. What is dropped here is dropped; what passes here is still up to LXD."""
SECONDS = 20
RECORD = "bridges.json"

Bridges = Mapping[str, str | None]
"""Bridges with their gateway as `address/prefix`; one without is closed altogether."""

_INTERFACE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,14}")


class FirewallError(RetryLaterError):
    """The rules cannot be read or put in force right now. No machine may start without them."""


def table_name(environment: str) -> str:
    return f"gpuaas-{environment}"


def render(environment: str, network_range: ipaddress.IPv4Network | None, bridges: Bridges) -> str:
    """Write one transaction that replaces the whole table, whether or not there was one."""
    name = table_name(environment)
    gateways = {bridge: ipaddress.IPv4Interface(cidr) for bridge, cidr in sorted(bridges.items()) if cidr is not None}
    sets = [
        _set("bridges", "ifname", [f'"{_checked(bridge)}"' for bridge in sorted(bridges)]),
        _set("same_bridge", "ifname . ifname", [f'"{bridge}" . "{bridge}"' for bridge in sorted(bridges)]),
        _set("gateways", "ifname . ipv4_addr", [f'"{bridge}" . {found.ip}' for bridge, found in gateways.items()]),
        _set(
            "subnets",
            "ifname . ipv4_addr",
            [f'"{bridge}" . {found.network}' for bridge, found in gateways.items()],
            interval=True,
        ),
        _set("range", "ipv4_addr", [str(network_range)] if network_range else [], interval=True),
    ]
    chains = [
        _chain(
            "from_machines",
            "meta nfproto != ipv4 drop",
            "ip saddr 0.0.0.0 ip daddr 255.255.255.255 udp sport 68 udp dport 67 accept",
            # Nobody speaks in the name of another network.
            "iifname . ip saddr != @subnets drop",
            # Answers to the host, which opens connections to machines.
            "ct state established,related accept",
            "iifname . ip daddr @gateways udp dport { 53, 67 } accept",
            "iifname . ip daddr @gateways tcp dport 53 accept",
            "reject",
        ),
        _chain(
            "input",
            f"type filter hook input priority {PRIORITY}; policy accept;",
            "iifname @bridges jump from_machines",
            'iifname != "lo" ip saddr @range drop',
            'iifname != "lo" ip daddr @range drop',
        ),
        _chain(
            "forward",
            f"type filter hook forward priority {PRIORITY}; policy accept;",
            # Where the host filters bridged traffic, machines of one bridge meet here, too.
            "iifname . oifname @same_bridge meta nfproto ipv4 accept",
            "iifname . ip saddr @subnets reject",
            "iifname @bridges drop",
            "oifname @bridges drop",
            "ip saddr @range drop",
            "ip daddr @range drop",
        ),
        _chain(
            "output",
            f"type filter hook output priority {PRIORITY}; policy accept;",
            "oifname @bridges meta nfproto != ipv4 drop",
            # A bridge that is missing or unknown: nothing for its machines leaves by another way.
            'oifname != "lo" oifname != @bridges ip daddr @range drop',
        ),
    ]
    body = "".join(sets + chains)
    return f"table inet {name}\ndelete table inet {name}\ntable inet {name} {{\n{body}}}\n"


def render_removal(environment: str) -> str:
    """Write a transaction that removes the table, if there is one."""
    name = table_name(environment)
    return f"table inet {name}\ndelete table inet {name}\n"


def _set(name: str, type_: str, elements: Sequence[str], *, interval: bool = False) -> str:
    flags = " flags interval;" if interval else ""
    content = f" elements = {{ {', '.join(elements)} }}" if elements else ""
    return f"\tset {name} {{ type {type_};{flags}{content} }}\n"


def _chain(name: str, *rules: str) -> str:
    return f"\tchain {name} {{\n" + "".join(f"\t\t{rule}\n" for rule in rules) + "\t}\n"


def _checked(interface: str) -> str:
    if not _INTERFACE.fullmatch(interface):
        raise FirewallError(f"cannot write rules for {interface!r}: it is not the name of a network interface")
    return interface


def normalise(listing: str) -> dict[str, Any]:
    """Read what `nft -j list table` said, by object, without what differs from one load to the next."""
    found: dict[str, Any] = {}
    for item in json.loads(listing)["nftables"]:
        ((kind, content),) = item.items()
        if kind == "metainfo":
            continue
        content = {key: value for key, value in content.items() if key != "handle"}
        if kind == "rule":
            found.setdefault(f"the rule list of chain {content['chain']}", []).append(content["expr"])
            continue
        if "elem" in content:
            content["elem"] = sorted(content["elem"], key=json.dumps)
        found[kind if kind == "table" else f"{kind} {content['name']}"] = content
    return found


def find_difference(wanted: Mapping[str, Any], found: Mapping[str, Any] | None) -> str:
    """Say in words how the rules in force differ from the wanted ones; empty where they do not."""
    if found is None:
        return "the table is missing"
    names = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    words = [
        f"{name} {'is missing' if name not in found else 'was added' if name not in wanted else 'was changed'}"
        for name in names
    ]
    return ", ".join(words)


class Firewall:
    def __init__(
        self,
        environment: str,
        network_range: ipaddress.IPv4Network | None,
        directory: Path,
        within: Sequence[str] = (),
    ) -> None:
        """`directory` keeps the record of the bridges; `within` are words that enter another network namespace."""
        self._environment = environment
        self._name = table_name(environment)
        self._range = network_range
        self._directory = directory
        self._within = list(within)
        self._known: tuple[str, dict[str, Any]] | None = None

    def read_bridges(self) -> dict[str, str | None]:
        """Read the bridges of which the agent has last known; none where the record is missing or broken."""
        path = self._directory / RECORD
        try:
            bridges = json.loads(path.read_text())["bridges"]
            render(self._environment, self._range, bridges)
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, FirewallError) as error:
            log.warning("cannot use %s, all bridges are closed until LXD names them: %s", path, error)
            return {}
        return dict(bridges)

    def ensure(self, bridges: Bridges) -> str:
        """Put the rules for these bridges in force, in one transaction; say what differed before."""
        text = render(self._environment, self._range, bridges)
        with self._alone():
            record = json.dumps({"bridges": dict(bridges)})
            write_atomically(self._directory / RECORD, record.encode(), mode=0o600)
            return self._ensure(text)

    def ensure_as_recorded(self) -> str:
        """The same for the bridges of the record: before LXD starts, and brings them up."""
        with self._alone():
            return self._ensure(render(self._environment, self._range, self.read_bridges()))

    def compare(self, bridges: Bridges) -> str:
        """Say how the rules in force differ from those for these bridges, and change nothing."""
        return find_difference(self._canonical(render(self._environment, self._range, bridges)), self._in_force())

    def remove(self) -> None:
        with self._alone():
            self._run(["nft", "-f", "-"], render_removal(self._environment))

    def _ensure(self, text: str) -> str:
        wanted = self._canonical(text)
        difference = find_difference(wanted, self._in_force())
        if difference:
            self._run(["nft", "-f", "-"], text)
            if left := find_difference(wanted, self._in_force()):
                raise FirewallError(f"cannot keep the firewall rules of {self._name} in force: {left}")
        return difference

    def _canonical(self, text: str) -> dict[str, Any]:
        """Let nft itself say how it lists these rules, in an empty network namespace that ends with it."""
        if self._known is None or self._known[0] != text:
            script = f"nft -f - && nft -j list table inet {self._name}"
            self._known = text, normalise(self._run(["unshare", "--net", "sh", "-c", script], text, within=False))
        return self._known[1]

    def _in_force(self) -> dict[str, Any] | None:
        tables = self._run(["nft", "-j", "list", "tables", "inet"])
        names = [item["table"]["name"] for item in json.loads(tables)["nftables"] if "table" in item]
        if self._name not in names:
            return None
        return normalise(self._run(["nft", "-j", "list", "table", "inet", self._name]))

    def _run(self, words: list[str], text: str = "", *, within: bool = True) -> str:
        command = [*self._within, *words] if within else words
        try:
            done = subprocess.run(
                command, input=text, capture_output=True, text=True, check=False, timeout=SECONDS, cwd="/"
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise FirewallError(f"cannot run {words[0]} for the firewall of this environment: {error}") from error
        if done.returncode:
            raise FirewallError(f"cannot run {' '.join(words)}: {done.stderr.strip()[-500:]}")
        return done.stdout

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the lock of the record: the agent and whoever brings the environment up or down take turns."""
        self._directory.mkdir(parents=True, exist_ok=True)
        with (self._directory / "firewall.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield
