"""Whose address counts: X-Forwarded-For is believed hop by hop, from the right, and from our own proxies only."""

import pytest

from gpuaas_contract.proxies import read_proxies
from gpuaas_platform.core.origins import client_address, group_of, readable_user_agent

PROXIES = read_proxies("10.0.0.0/8, 192.0.2.1,fd00::/8")

CASES = {
    "no proxies: the header is anybody's invention": ("203.0.113.9", ["1.2.3.4"], (), "203.0.113.9"),
    "the peer is no proxy": ("203.0.113.9", ["1.2.3.4"], PROXIES, "203.0.113.9"),
    "one proxy": ("10.0.0.1", ["1.2.3.4"], PROXIES, "1.2.3.4"),
    "what the client wrote itself stands to the left": ("10.0.0.1", ["6.6.6.6, 1.2.3.4"], PROXIES, "1.2.3.4"),
    "two proxies": ("10.0.0.1", ["6.6.6.6, 1.2.3.4, 192.0.2.1"], PROXIES, "1.2.3.4"),
    "several headers are one list": ("10.0.0.1", ["6.6.6.6", "1.2.3.4", "10.9.9.9"], PROXIES, "1.2.3.4"),
    "proxies only": ("10.0.0.1", ["10.0.0.3, 10.0.0.2"], PROXIES, "10.0.0.3"),
    "no header": ("10.0.0.1", [], PROXIES, "10.0.0.1"),
    "an empty header": ("10.0.0.1", [""], PROXIES, "10.0.0.1"),
    "not an address": ("10.0.0.1", ["1.2.3.4, unknown"], PROXIES, "10.0.0.1"),
    "hostile text": ("10.0.0.1", ["'; DROP TABLE users; --"], PROXIES, "10.0.0.1"),
    "a zone": ("10.0.0.1", ["fe80::1%eth0"], PROXIES, "10.0.0.1"),
    "a number": ("10.0.0.1", ["16909060"], PROXIES, "10.0.0.1"),
    "with a port": ("10.0.0.1", ["1.2.3.4:55555"], PROXIES, "1.2.3.4"),
    "with what is not a port": ("10.0.0.1", ["1.2.3.4:x"], PROXIES, "10.0.0.1"),
    "IPv6 in brackets": ("10.0.0.1", ["[2001:db8::7]:443"], PROXIES, "2001:db8::7"),
    "IPv6 without": ("fd00::1", ["2001:DB8::7"], PROXIES, "2001:db8::7"),
    "IPv4 in IPv6": ("::ffff:10.0.0.1", ["::ffff:1.2.3.4"], PROXIES, "1.2.3.4"),
    "a header without end": ("10.0.0.1", ["1.2.3.4" + ", 10.0.0.2" * 5_000], PROXIES, "10.0.0.2"),
    "a socket without an address": (None, ["1.2.3.4"], PROXIES, ""),
    "a peer that is none": ("testclient", ["1.2.3.4"], PROXIES, ""),
}


@pytest.mark.parametrize("case", CASES)
def test_the_address_of_a_client(case: str) -> None:
    peer, forwarded, proxies, address = CASES[case]
    assert client_address(peer, forwarded, proxies) == address


def test_one_subscriber_counts_once() -> None:
    assert group_of("2001:db8:1:2::7") == group_of("2001:db8:1:2:ffff::1") != group_of("2001:db8:1:3::7")
    assert group_of("203.0.113.9") == "203.0.113.9"
    assert group_of("") == ""


def test_proxies_are_networks_separated_by_commas() -> None:
    assert [str(network) for network in PROXIES] == ["10.0.0.0/8", "192.0.2.1/32", "fd00::/8"]
    assert read_proxies("") == read_proxies(" , ") == ()


@pytest.mark.parametrize(
    "text", ["proxy.example.com", "10.0.0.1/8", "10.0.0.0/33", "0.0.0.0/0", "::/0", "*", "a" * 9_999]
)
def test_what_is_not_a_network_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a network|everybody") as refused:
        read_proxies(f"10.0.0.0/8,{text}")
    assert len(str(refused.value)) < 300


def test_a_user_agent_is_cut_and_has_nothing_unprintable() -> None:
    assert readable_user_agent("curl/8\x00\x1b[31m\r\n" + "x" * 500) == "curl/8[31m" + "x" * 190
