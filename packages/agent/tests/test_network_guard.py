"""Messages and commands of the guard, given the rules in force and LXD's networks."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpuaas_agent.errors import LxdUnavailableError, RetryLaterError
from gpuaas_agent.firewall import Bridges, Firewall, FirewallError
from gpuaas_agent.lxd import Lxd, Network
from gpuaas_agent.network_guard import NetworkGuard, gateway_of
from gpuaas_agent.networks import NetworkManager
from gpuaas_agent.slice_config import ENVIRONMENT
from gpuaas_contract.agent_link import ProjectNetwork

MINE = {ENVIRONMENT: "mine", "ipv4.address": "10.85.1.1/24"}
MAKING = ProjectNetwork(owner_id="prj_2", bridge="gpb", gateway_cidr="10.85.2.1/24")


class Rules(Firewall):
    """Rules that are in force when the test says so."""

    def __init__(self, directory: Path) -> None:
        super().__init__("mine", None, directory)
        self.in_force: dict[str, str | None] | None = None
        self.broken = ""

    def ensure(self, bridges: Bridges) -> str:
        difference = self.compare(bridges)
        self.in_force = dict(bridges)
        return difference

    def compare(self, bridges: Bridges) -> str:
        if self.broken:
            raise FirewallError(self.broken)
        return "" if self.in_force == dict(bridges) else "the table is missing"


class Networks(Lxd):
    """An LXD with these networks, which notes what is changed."""

    def __init__(self) -> None:
        super().__init__(Path("/nonexistent"))
        self.found: list[Network] = []
        self.restarted: list[str] = []
        self.away = False

    async def request(self, method: str, path: str, **arguments: Any) -> Any:
        if self.away:
            raise LxdUnavailableError("LXD does not answer")
        if method == "PATCH":
            self.restarted.append(path.rpartition("/")[2])
            return None
        if not arguments:
            return [f"/1.0/networks/{network.name}" for network in self.found]
        return [{**vars(network)} for network in self.found]


class Guarded:
    def __init__(self, tmp_path: Path) -> None:
        self.lxd = Networks()
        self.rules = Rules(tmp_path)
        self.told: list[list[str]] = []
        self.mended = 0
        self.guard = NetworkGuard(
            self.lxd, tmp_path, "mine", self.rules, lambda found: self.told.append([each.message for each in found])
        )
        self.guard.on_mended = self.count

    def count(self) -> None:
        self.mended += 1


@pytest.fixture
async def guarded(tmp_path: Path) -> AsyncIterator[Guarded]:
    made = Guarded(tmp_path)
    await made.guard.start()
    yield made
    await made.lxd.aclose()


def network(name: str, status: str = "Created", **config: str) -> Network:
    return Network(name=name, managed=True, config=MINE | config, used_by=[], status=status)


async def test_nothing_is_said_while_all_is_as_wanted(guarded: Guarded) -> None:
    await guarded.guard.check()
    await guarded.guard.check()
    assert guarded.told == []


async def test_lost_rules_are_said_before_they_are_put_back(guarded: Guarded) -> None:
    guarded.rules.in_force = None
    await guarded.guard.check()
    assert guarded.told == [
        ["the firewall of this node is not as wanted: the table is missing; its agent puts it back"],
        [],
    ]
    assert guarded.rules.in_force == {}


async def test_rules_that_cannot_be_put_in_force_stay_said_and_keep_machines_away(guarded: Guarded) -> None:
    guarded.rules.broken = "cannot run nft: not found"
    await guarded.guard.check()
    await guarded.guard.check()
    assert guarded.told == [["cannot run nft: not found"]]
    for _ in range(2):
        with pytest.raises(RetryLaterError):
            async with guarded.guard.admit(MAKING):
                pytest.fail("no bridge may be made without rules")
    guarded.rules.broken = ""
    await guarded.guard.check()
    assert guarded.told[-1] == []


async def test_rules_come_before_a_bridge_and_go_after_it(guarded: Guarded) -> None:
    async with guarded.guard.admit(MAKING):
        assert guarded.rules.in_force == {"gpb": "10.85.2.1/24"}
        # LXD does not have it yet.
        await guarded.guard.follow([])
        assert guarded.rules.in_force == {"gpb": "10.85.2.1/24"}
    await guarded.guard.follow([network("gpb", **{"ipv4.address": "10.85.2.1/24"})])
    assert guarded.rules.in_force == {"gpb": "10.85.2.1/24"}
    await guarded.guard.follow([])
    assert guarded.rules.in_force == {}


async def test_a_broken_firewall_does_not_hold_up_a_removal(guarded: Guarded) -> None:
    await guarded.guard.follow([network("gpa")])
    guarded.rules.broken = "cannot run nft: not found"
    await NetworkManager(guarded.lxd, "mine", guarded.guard).delete_unused()
    guarded.rules.broken = ""
    await guarded.guard.check()
    assert guarded.rules.in_force == {}


async def test_only_bridges_of_the_environment_get_rules(guarded: Guarded) -> None:
    others = [
        network("gpz", **{ENVIRONMENT: "another"}),
        Network(name="eth0", managed=False, config={}, used_by=[]),
    ]
    await guarded.guard.follow([network("gpa"), *others])
    assert guarded.rules.in_force == {"gpa": "10.85.1.1/24"}


async def test_a_fault_is_said_and_mended_when_it_is_seen_twice(guarded: Guarded) -> None:
    guarded.lxd.found = [network("gp-not-there")]
    await guarded.guard.check()
    assert (guarded.told, guarded.lxd.restarted) == ([], [])
    await guarded.guard.check()
    assert guarded.told == [["bridge gp-not-there: its interface is missing; its agent brings it back"]]
    assert guarded.mended == 1
    assert guarded.lxd.restarted == ["gp-not-there"]
    # While LXD is away, nothing is known to be better.
    guarded.lxd.away = True
    await guarded.guard.check()
    assert len(guarded.told) == 1
    guarded.lxd.away, guarded.lxd.found = False, []
    await guarded.guard.check()
    assert guarded.told[1:] == [[]]


async def test_a_network_that_lxd_could_not_start_is_a_fault(guarded: Guarded) -> None:
    # Loopback stands for a bridge whose interface is there; without a gateway it needs no name server.
    guarded.lxd.found = [network("lo", "Unavailable", **{"ipv4.address": "none"})]
    await guarded.guard.check()
    await guarded.guard.check()
    assert guarded.told == [["bridge lo: LXD has it as unavailable; its agent brings it back"]]
    assert guarded.lxd.restarted == [], "LXD itself tries again"


async def test_lost_rules_come_back_while_lxd_is_away(guarded: Guarded) -> None:
    guarded.lxd.away, guarded.rules.in_force = True, None
    await guarded.guard.check()
    assert guarded.rules.in_force == {}


def test_a_bridge_whose_gateway_is_not_private_is_closed_altogether() -> None:
    assert gateway_of(network("gpa")) == "10.85.1.1/24"
    for address in ("none", "", "8.8.8.1/24", "10.85.1.1/8"):
        assert gateway_of(network("gpa", **{"ipv4.address": address})) is None
