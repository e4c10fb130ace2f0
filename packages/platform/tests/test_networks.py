"""The address plan."""

from ipaddress import IPv4Network

from gpuaas_platform.allocations.rules.networks import FIRST_HOST, bridge_name, free_address, gateway_cidr, owner_subnet

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


def test_the_lowest_free_address_is_given_and_never_the_gateway() -> None:
    subnet = IPv4Network("10.83.1.0/24")
    assert gateway_cidr(subnet) == "10.83.1.1/24"
    assert free_address(subnet, []) == "10.83.1.10"
    assert free_address(subnet, ["10.83.1.10", "10.83.1.12"]) == "10.83.1.11"


def test_a_bridge_has_a_name_that_linux_takes_and_nobody_else_has() -> None:
    owners = [f"prj_{number}" for number in range(500)]
    names = {bridge_name(environment, owner) for environment in ("demo", "tests") for owner in owners}
    assert len(names) == 2 * len(owners)
    assert all(len(name) <= 15 and name.isalnum() for name in names)
    assert bridge_name("demo", "prj_1") == bridge_name("demo", "prj_1")
