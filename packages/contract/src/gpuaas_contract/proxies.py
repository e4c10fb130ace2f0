"""The setting that names the reverse proxies in front of the API."""

from ipaddress import IPv4Network, IPv6Network, ip_network

Network = IPv4Network | IPv6Network


def read_proxies(text: str) -> tuple[Network, ...]:
    """Read the setting: networks or addresses, separated by commas."""
    networks = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        try:
            network = ip_network(part)
        except ValueError as error:
            raise ValueError(
                f"{part[:60]!r} is not a network ({str(error)[-60:]}); write for example 10.0.0.0/8"
            ) from None
        if network.prefixlen == 0:
            raise ValueError(f"{part!r} is everybody: name the networks of your proxies only")
        networks.append(network)
    return tuple(networks)
