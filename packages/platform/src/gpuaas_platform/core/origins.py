"""Where a request comes from: the address that limits and the audit trail go by, the program, the service asked."""

from collections.abc import Callable, Iterable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

from gpuaas_contract.proxies import Network

Address = IPv4Address | IPv6Address
MOST_HOPS = 20
"""Of a forwarded header, from its right end: what a client wrote itself stands further left."""
MOST_USER_AGENT = 200
PLATFORM_SERVICE = "platform"
"""Of what the platform does by itself."""
SUBSCRIBER_BITS = 64
"""One subscriber has at least so much of IPv6, and could take a new address for every guess."""


@dataclass(frozen=True, slots=True)
class Origin:
    address: str = ""
    user_agent: str = ""
    service_of: Callable[[], str] = lambda: PLATFORM_SERVICE
    """Asked when it is needed: which route answers is known later than where a request comes from."""

    @property
    def service(self) -> str:
        return self.service_of()

    @property
    def group(self) -> str:
        """Return what limits count as one address."""
        return group_of(self.address)


PLATFORM = Origin()
current_origin: ContextVar[Origin] = ContextVar("current_origin", default=PLATFORM)
"""Set for a request, and for all that it starts."""


def client_address(peer: str | None, forwarded: Iterable[str], proxies: Sequence[Network]) -> str:
    """Return the right-most address that is no proxy of ours; the peer's own where that is not a proxy.

    `forwarded` are the X-Forwarded-For headers in their order. Anybody can send one: each hop is believed only
    because the proxy to its right is ours. Where a hop is not an address, the proxy that sent it is the origin."""
    found = read_address(peer or "")
    if found is None:
        return ""
    hops = [hop for header in forwarded for hop in header.split(",")][-MOST_HOPS:] if proxies else []
    while _is_within(found, proxies) and hops:
        before = read_address(hops.pop())
        if before is None:
            break
        found = before
    return str(found)


def is_proxy(peer: str | None, proxies: Sequence[Network]) -> bool:
    """Tell whether what the peer says of its own client is to be believed."""
    found = read_address(peer or "")
    return found is not None and _is_within(found, proxies)


def read_address(text: str) -> Address | None:
    """Read an address as proxies write it: with or without a port, IPv6 in brackets or bare."""
    text = text.strip()
    if text.startswith("["):
        text, _, port = text[1:].partition("]")
        if port and not _is_port(port):
            return None
    elif text.count(":") == 1:
        text, _, port = text.partition(":")
        if not _is_port(f":{port}"):
            return None
    if "%" in text:  # A zone is any text at all, and means something on one machine only.
        return None
    try:
        found = ip_address(text)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return mapped or found


def _is_port(text: str) -> bool:
    return text.startswith(":") and text[1:].isascii() and text[1:].isdecimal() and len(text) <= 6


def _is_within(address: Address, networks: Sequence[Network]) -> bool:
    return any(address in network for network in networks)


def group_of(address: str) -> str:
    """Return the key of an address for limits: itself, or the subscriber's part of an IPv6 address."""
    found = read_address(address)
    if isinstance(found, IPv6Address):
        return str(IPv6Network((found, SUBSCRIBER_BITS), strict=False))
    return address


def readable_user_agent(text: str) -> str:
    return "".join(character for character in text if character.isprintable())[:MOST_USER_AGENT]
