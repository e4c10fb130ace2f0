"""The firewall in force, on a host of network namespaces: its bridges with machines, and a bridge of somebody else."""

import ctypes
import ipaddress
import json
import os
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from gpuaas_agent.firewall import Firewall, FirewallError

from .agent_test_host import run

pytestmark = pytest.mark.machines

NAME = f"gpfw{os.getpid()}"
HOST = f"{NAME}-host"
BRIDGES = {"gpa": "10.86.1.1/24", "gpb": "10.86.2.1/24"}
OTHERS = {"brx": "192.168.77.1/24", "gplost": "10.86.9.1/24"}
"""Of somebody else; and one in the range of which the agent does not know."""
MACHINES = {"a1": "10.86.1.10", "a2": "10.86.1.11", "b1": "10.86.2.10", "x1": "192.168.77.10", "lost": "10.86.9.10"}
SERVICE, DNS = 8000, 53
TCP, UDP = "tcp", "udp"
PATIENCE, SHORT = 10.0, 0.3
NAME_SERVERS: dict[str, socket.socket] = {}
"""By the address of their gateway, as each bridge has one."""
INTERFACES: dict[str, int] = {}
"""The index of each machine's own, which a link-local address needs."""
LIBC = ctypes.CDLL(None, use_errno=True)
CLONE_NEWNET = 0x40000000


def within(namespace: str, *words: str) -> list[str]:
    return ["ip", "netns", "exec", namespace, *words]


def ns(machine: str) -> str:
    return HOST if machine == "host" else f"{NAME}-{machine}"


def add_machine(machine: str, address: str) -> None:
    bridge, gateway = next(
        (bridge, cidr)
        for bridge, cidr in (BRIDGES | OTHERS).items()
        if ipaddress.IPv4Address(address) in ipaddress.IPv4Interface(cidr).network
    )
    run("ip", "netns", "add", ns(machine))
    run("ip", "-n", HOST, "link", "add", f"v{machine}", "type", "veth", "peer", "name", "eth0", "netns", ns(machine))
    run("ip", "-n", HOST, "link", "set", f"v{machine}", "master", bridge, "up")
    run("ip", "-n", ns(machine), "address", "add", f"{address}/24", "dev", "eth0")
    # Its link-local address is good at once.
    run(*within(ns(machine), "sysctl", "--quiet", "--write", "net.ipv6.conf.eth0.accept_dad=0"))
    run("ip", "-n", ns(machine), "link", "set", "eth0", "up")
    INTERFACES[machine] = json.loads(run("ip", "-n", ns(machine), "-j", "link", "show", "eth0"))[0]["ifindex"]
    run("ip", "-n", ns(machine), "route", "add", "default", "via", gateway.partition("/")[0])


@pytest.fixture(scope="module")
def host() -> Iterator[None]:
    """Every machine and the host itself listen on a port of a service, over IPv6, too; the host also on that of DNS."""
    with ExitStack() as ends:
        for machine in ("host", *MACHINES):
            ends.callback(subprocess.run, ["ip", "netns", "delete", ns(machine)], check=False, capture_output=True)
        run("ip", "netns", "add", HOST)
        run("ip", "-n", HOST, "link", "set", "lo", "up")
        run(*within(HOST, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward"))
        for bridge, cidr in (BRIDGES | OTHERS).items():
            run("ip", "-n", HOST, "link", "add", bridge, "type", "bridge")
            run("ip", "-n", HOST, "address", "add", cidr, "dev", bridge)
            run("ip", "-n", HOST, "address", "add", "fe80::1/64", "dev", bridge, "nodad")
            run("ip", "-n", HOST, "link", "set", bridge, "up")
        for machine, address in MACHINES.items():
            add_machine(machine, address)
        for machine in ("host", *MACHINES):
            ends.enter_context(listener(machine, socket.AF_INET6, socket.SOCK_STREAM, "::", SERVICE))
        ends.enter_context(listener("host", socket.AF_INET, socket.SOCK_STREAM, "0.0.0.0", DNS))
        for cidr in (BRIDGES | OTHERS).values():
            gateway = cidr.partition("/")[0]
            NAME_SERVERS[gateway] = ends.enter_context(
                listener("host", socket.AF_INET, socket.SOCK_DGRAM, gateway, DNS)
            )
        yield


@pytest.fixture
def firewall(host: None, tmp_path: Path) -> Iterator[Firewall]:
    made = Firewall("test", ipaddress.IPv4Network("10.86.0.0/16"), tmp_path, within(HOST))
    yield made
    made.remove()


def socket_of(machine: str, family: int, kind: int) -> socket.socket:
    """Make a socket in the network namespace of a machine: a thread enters it, and ends there."""

    def make() -> socket.socket:
        with Path(f"/run/netns/{ns(machine)}").open() as namespace:
            if LIBC.setns(namespace.fileno(), CLONE_NEWNET):
                raise OSError(ctypes.get_errno(), "cannot enter a network namespace")
        return socket.socket(family, kind)

    with ThreadPoolExecutor(1) as pool:
        return pool.submit(make).result()


def listener(machine: str, family: int, kind: int, address: str, port: int) -> socket.socket:
    made = socket_of(machine, family, kind)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind((address, port))
    made.settimeout(PATIENCE)
    if kind == socket.SOCK_STREAM:
        made.listen(100)
    return made


def knock(
    machine: str, address: str, port: int, protocol: str = TCP, *, patience: float = PATIENCE, sender: str = ""
) -> bool:
    """Open a connection, or send a datagram and wait for what is sent back."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket_of(machine, family, socket.SOCK_STREAM if protocol == TCP else socket.SOCK_DGRAM) as sock:
        sock.settimeout(patience)
        if sender:
            sock.bind((sender, 0))
        where = (address, port, 0, INTERFACES[machine]) if family == socket.AF_INET6 else (address, port)
        try:
            sock.connect(where)
            if protocol == UDP:
                sock.send(b"hello")
                server = NAME_SERVERS[address]
                server.settimeout(patience)
                server.sendto(*server.recvfrom(100))
                return sock.recv(100) == b"hello"
        except (TimeoutError, OSError):
            return False
    return True


OPEN = [
    ("a1", "10.86.1.11", SERVICE, TCP),
    ("a1", "10.86.1.1", DNS, TCP),
    ("a1", "10.86.1.1", DNS, UDP),
    ("b1", "10.86.2.1", DNS, UDP),
    # The host reaches its machines and itself, and somebody else's bridge is as it was.
    ("host", "10.86.1.10", SERVICE, TCP),
    ("host", "10.86.1.1", SERVICE, TCP),
    ("host", "127.0.0.1", SERVICE, TCP),
    ("host", "192.168.77.10", SERVICE, TCP),
    ("x1", "192.168.77.1", SERVICE, TCP),
    ("x1", "fe80::1", SERVICE, TCP),
]
CLOSED = [
    ("a1", "10.86.1.1", SERVICE, TCP),
    ("a1", "192.168.77.1", SERVICE, TCP),
    ("a1", "10.86.2.1", SERVICE, TCP),
    ("a1", "10.86.2.1", DNS, TCP),
    ("a1", "10.86.2.1", DNS, UDP),
    ("a1", "192.168.77.1", DNS, UDP),
    ("a1", "10.86.2.10", SERVICE, TCP),
    ("a1", "192.168.77.10", SERVICE, TCP),
    ("a1", "fe80::1", SERVICE, TCP),
    ("x1", "10.86.1.10", SERVICE, TCP),
    ("x1", "10.86.1.1", DNS, UDP),
    ("lost", "10.86.9.1", DNS, UDP),
    ("host", "10.86.9.10", SERVICE, TCP),
]


def test_machines_reach_their_own_and_nothing_else(firewall: Firewall) -> None:
    assert [case for case in OPEN + CLOSED if not knock(*case)] == [], "all of it is open without the firewall"
    assert firewall.ensure(BRIDGES) == "the table is missing"
    assert [case for case in OPEN if not knock(*case)] == []
    assert [case for case in CLOSED if knock(*case, patience=SHORT)] == []


def test_nobody_speaks_in_the_name_of_another_network(firewall: Firewall) -> None:
    firewall.ensure(BRIDGES)
    run("ip", "-n", ns("a1"), "address", "add", "10.86.2.77/32", "dev", "eth0")
    run("ip", "-n", HOST, "route", "add", "10.86.2.77/32", "dev", "gpa")
    try:
        assert not knock("a1", "10.86.1.1", DNS, UDP, patience=SHORT, sender="10.86.2.77")
        firewall.remove()
        assert knock("a1", "10.86.1.1", DNS, UDP, sender="10.86.2.77")
    finally:
        run("ip", "-n", HOST, "route", "delete", "10.86.2.77/32")
        run("ip", "-n", ns("a1"), "address", "delete", "10.86.2.77/32", "dev", "eth0")


def test_without_a_known_bridge_all_of_the_range_is_closed(firewall: Firewall) -> None:
    firewall.ensure_as_recorded()
    assert not knock("a1", "10.86.1.1", DNS, UDP, patience=SHORT)
    assert not knock("a1", "10.86.2.10", SERVICE, patience=SHORT)
    assert not knock("host", "10.86.1.10", SERVICE, patience=SHORT)
    assert knock("x1", "192.168.77.1", SERVICE)


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("flush ruleset", "the table is missing"),
        ("flush chain inet gpuaas-test input", "the rule list of chain input is missing"),
        ("insert rule inet gpuaas-test from_machines accept", "the rule list of chain from_machines was changed"),
        ("delete element inet gpuaas-test bridges { gpa }", "set bridges was changed"),
        ("add table inet gpuaas-test { flags dormant; }", "table was changed"),
    ],
)
def test_damage_is_seen_and_mended(firewall: Firewall, damage: str, words: str) -> None:
    firewall.ensure(BRIDGES)
    assert firewall.compare(BRIDGES) == ""
    run(*within(HOST, "nft", damage))
    assert firewall.compare(BRIDGES) == words
    assert firewall.ensure_as_recorded() == words
    assert firewall.compare(BRIDGES) == ""
    assert firewall.ensure(BRIDGES) == ""


def test_environments_have_tables_of_their_own(firewall: Firewall, tmp_path: Path) -> None:
    firewall.ensure(BRIDGES)
    other = Firewall("other", ipaddress.IPv4Network("10.87.0.0/16"), tmp_path / "other", within(HOST))
    other.ensure({"gpz": "10.87.1.1/24"})
    assert firewall.compare(BRIDGES) == ""
    other.remove()
    other.remove()
    assert firewall.compare(BRIDGES) == ""


def test_rules_that_cannot_be_put_in_force_are_said(tmp_path: Path) -> None:
    nowhere = Firewall("test", None, tmp_path, ["ip", "netns", "exec", "no-such-namespace"])
    with pytest.raises(FirewallError, match="no-such-namespace"):
        nowhere.ensure(BRIDGES)
