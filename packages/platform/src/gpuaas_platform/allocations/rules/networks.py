"""The address plan: one /24 of the platform's range per project, and per tenant with machines of its own."""

import hashlib
from collections.abc import Collection
from ipaddress import IPv4Network

FIRST_HOST = 10
"""The addresses before it are left for the gateway and for services to come."""


def owner_subnet(network_range: IPv4Network, index: int) -> IPv4Network | None:
    """None where the range has no room for so many networks."""
    offset = index << 8
    if offset >= network_range.num_addresses:
        return None
    return IPv4Network((int(network_range.network_address) + offset, 24))


def gateway_cidr(subnet: IPv4Network) -> str:
    return f"{subnet.network_address + 1}/{subnet.prefixlen}"


def free_address(subnet: IPv4Network, taken: Collection[str]) -> str | None:
    for number in range(FIRST_HOST, subnet.num_addresses - 1):
        address = str(subnet.network_address + number)
        if address not in taken:
            return address
    return None


def bridge_name(environment: str, owner_id: str) -> str:
    """At most 15 characters, which is all that Linux gives a network device."""
    return "gp" + hashlib.sha256(f"{environment}/{owner_id}".encode()).hexdigest()[:10]
