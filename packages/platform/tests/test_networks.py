"""The address plan."""

from ipaddress import IPv4Network

from gpuaas_platform.domain.networks import FIRST_HOST, free_address, owner_subnet

RANGE = IPv4Network("10.83.0.0/16")


def test_every_owner_has_a_network_of_its_own_until_the_range_ends() -> None:
    subnets = [owner_subnet(RANGE, index) for index in range(256)]
    assert len(set(subnets)) == 256
    assert all(subnet is not None and subnet.subnet_of(RANGE) for subnet in subnets)
    assert owner_subnet(RANGE, 256) is None


def test_addresses_run_out() -> None:
    subnet = owner_subnet(RANGE, 1)
    assert subnet is not None
    taken: set[str] = set()
    while address := free_address(subnet, taken):
        taken.add(address)
    assert len(taken) == 255 - FIRST_HOST
    assert "10.83.1.255" not in taken
