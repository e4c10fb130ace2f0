"""Who may log in under a lease: one file for each login name, whole at once, and shut by itself without a link."""

import asyncio
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from gpuaas_agent.errors import PermanentError, RetryLaterError
from gpuaas_agent.leases import LeaseKeeper, read_door, write_door
from gpuaas_agent.slice_config import LEASE_SOURCE
from gpuaas_contract.access import OBSERVER_LOGIN
from gpuaas_contract.agent_link import LeasesSet, SetLeases
from gpuaas_contract.ids import SERVICE_ACCOUNT, USER, new_id

OPERATION, OTHER, INSTANCE = "op_01m7/7", "op_01m8/9", "ins_01m7/11"


class Doors:
    def __init__(self, root: Path, *machines: str) -> None:
        self.root = root
        self.cut: list[str] = []
        self.failing = 0
        for machine in machines:
            (root / machine / "leases").mkdir(parents=True)

    async def list_doors(self) -> dict[str, Path]:
        return {path.parent.name: path for path in self.root.glob("*/leases")}

    async def ensure_door(self, allocation_id: str) -> None:
        if not (self.root / allocation_id).is_dir():
            raise PermanentError(f"this host has no machine of {allocation_id}")

    async def cut_sessions(self, allocation_id: str) -> None:
        if self.failing:
            self.failing -= 1
            raise RetryLaterError("it is busy")
        self.cut.append(allocation_id)

    def lines(self, machine: str) -> dict[str, str]:
        return read_door(self.root / machine / "leases")


async def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "waited 30 s in vain"
        await asyncio.sleep(0.01)


def message(sequence: int, **machines: dict[str, list[str]]) -> SetLeases:
    return SetLeases(sequence=sequence, machines=machines)


class SlowDoors(Doors):
    """As with an LXD that does not answer."""

    async def ensure_door(self, allocation_id: str) -> None:
        await asyncio.Event().wait()


async def test_shutting_somebody_out_does_not_wait_for_letting_somebody_in(tmp_path: Path) -> None:
    doors = SlowDoors(tmp_path, "one", "two")
    write_door(tmp_path / "one/leases", {"root": [OPERATION]})
    keeper = LeaseKeeper(doors, lambda told: None)
    keeper.linked()
    keeper.set(message(1, two={"root": [OTHER]}))
    await until(lambda: doors.cut)
    assert (doors.lines("one"), doors.cut) == ({}, ["one"])
    await keeper.aclose()


async def test_without_a_link_leases_are_shut_and_people_who_administer_the_machine_are_not(tmp_path: Path) -> None:
    person, account = f"{new_id(USER)}/role", f"{new_id(SERVICE_ACCOUNT)}/role"
    doors = Doors(tmp_path, "one", "two")
    write_door(tmp_path / "one/leases", {"root": [OPERATION], "gpuaas": [person, account]})
    write_door(tmp_path / "two/leases", {OBSERVER_LOGIN: [INSTANCE]})
    keeper = LeaseKeeper(doors, lambda told: None, patience_seconds=0.01, pause_seconds=0.01)
    keeper.unlinked()
    await until(lambda: doors.lines("two") == {} and set(doors.cut) == {"one", "two"})
    assert doors.lines("one") == {"gpuaas": f"{person}\n{account}\n"}
    await keeper.aclose()


async def test_a_machine_that_could_not_be_told_is_told_again(tmp_path: Path) -> None:
    doors, sent = Doors(tmp_path, "one", "two"), list[LeasesSet]()
    for machine in ("one", "two"):
        write_door(tmp_path / machine / "leases", {"root": [OPERATION]})
    # In the way of what is written there, as a full disk would be.
    obstacle = tmp_path / "one/leases/.root.part"
    obstacle.mkdir()
    keeper = LeaseKeeper(doors, sent.append, pause_seconds=0.01)
    keeper.linked()
    keeper.set(message(1, one={"root": [OTHER]}, two={"root": [OTHER]}))
    await until(lambda: sent)
    assert doors.lines("two") == {"root": f"{OTHER}\n"}, "the other one does not wait for it"
    obstacle.rmdir()
    await until(lambda: doors.lines("one") == {"root": f"{OTHER}\n"})
    assert len(sent) == 1
    await keeper.aclose()


async def test_it_lets_in_exactly_those_that_are_named_and_cuts_the_others(tmp_path: Path) -> None:
    doors, sent = Doors(tmp_path, "one", "two"), list[LeasesSet]()
    keeper = LeaseKeeper(doors, sent.append)
    keeper.linked()
    keeper.set(message(1, one={"root": [OPERATION], "gpuaas-observer": [INSTANCE]}, two={"root": [OTHER]}))
    await until(lambda: sent)
    assert doors.lines("one") == {"root": f"{OPERATION}\n", "gpuaas-observer": f"restrict {INSTANCE}\n"}
    assert doors.cut == [], "nobody was shut out"
    keeper.set(message(2, one={"gpuaas-observer": [INSTANCE]}, two={"root": [OTHER, OPERATION]}, gone={"root": ["x"]}))
    await until(lambda: len(sent) == 2)
    assert doors.lines("one") == {"gpuaas-observer": f"restrict {INSTANCE}\n"}
    assert doors.lines("two") == {"root": f"{OTHER}\n{OPERATION}\n"}
    await until(lambda: doors.cut)
    assert doors.cut == ["one"], "who was let in beside others cuts nobody"
    assert [told.sequence for told in sent] == [1, 2]
    await keeper.aclose()


async def test_a_cut_that_fails_or_was_interrupted_is_done_in_the_end(tmp_path: Path) -> None:
    doors = Doors(tmp_path, "one")
    door = tmp_path / "one" / "leases"
    write_door(door, {"root": [OPERATION]})
    assert write_door(door, {}), "an agent that dies here has shut somebody out, and cut nobody"
    doors.failing = 2
    keeper = LeaseKeeper(doors, lambda _told: None)
    keeper.set(message(1))
    await until(lambda: doors.cut == ["one"])
    await until(lambda: not list((tmp_path / "one").glob("*.uncut")))
    keeper.set(message(2))
    keeper.set(message(3, one={"root": [OTHER]}))
    await until(lambda: doors.lines("one"))
    assert doors.cut == ["one"]
    await keeper.aclose()


async def test_without_a_link_for_too_long_nobody_is_let_in(tmp_path: Path) -> None:
    doors = Doors(tmp_path, "one")
    keeper = LeaseKeeper(doors, lambda _told: None, patience_seconds=0.05)
    keeper.linked()
    keeper.set(message(1, one={"root": [OPERATION]}))
    await until(lambda: doors.lines("one"))
    keeper.unlinked()
    await until(lambda: not doors.lines("one"))
    await until(lambda: doors.cut == ["one"])
    keeper.linked()
    keeper.set(message(1, one={"root": [OPERATION]}))
    await until(lambda: doors.lines("one"))
    await keeper.aclose()


async def test_a_link_that_is_back_in_time_shuts_nobody_out(tmp_path: Path) -> None:
    doors, sent = Doors(tmp_path, "one"), list[LeasesSet]()
    keeper = LeaseKeeper(doors, sent.append, patience_seconds=3_600)
    keeper.set(message(1, one={"root": [OPERATION]}))
    keeper.unlinked()
    keeper.unlinked()
    keeper.linked()
    keeper.set(message(1, one={"root": [OPERATION]}))
    await until(lambda: sent)
    assert doors.lines("one") == {"root": f"{OPERATION}\n"}
    await keeper.aclose()


async def test_what_could_do_harm_lets_nobody_in_and_the_others_do_not_suffer(tmp_path: Path) -> None:
    doors, sent = Doors(tmp_path, "one", "two"), list[LeasesSet]()
    keeper = LeaseKeeper(doors, sent.append)
    keeper.set(message(1, one={"../root": [OPERATION]}, two={"root": [OTHER]}))
    await until(lambda: sent)
    assert doors.lines("one") == {}
    assert doors.lines("two") == {"root": f"{OTHER}\n"}
    assert not (tmp_path / "one" / "root").exists()
    await keeper.aclose()


@pytest.mark.parametrize(
    ("login", "key_id", "answer"),
    [
        ("root", f"{OPERATION}/cor_1", f"{OPERATION}\n"),
        ("root", f"{OPERATION}/a/b c", f"{OPERATION}\n"),
        ("gpuaas-observer", f"{INSTANCE}/cor_1", f"restrict {INSTANCE}\n"),
        ("root", f"{INSTANCE}/cor_1", ""),
        ("root", "op_01m7/77/cor_1", ""),
        ("root", "op_01m7/cor_1", ""),
        ("root", "p_01m7/7/cor_1", ""),
        ("root", "*/*/cor_1", ""),
        ("root", "ada@example.com/cor_1", ""),
        ("root", "", ""),
        ("nobody", f"{OPERATION}/cor_1", ""),
    ],
)
def test_sshd_is_answered_with_the_line_of_the_certificate(
    tmp_path: Path, login: str, key_id: str, answer: str
) -> None:
    door = tmp_path / "leases"
    door.mkdir()
    write_door(door, {"root": [OPERATION, OTHER], "gpuaas-observer": [INSTANCE]})
    script = LEASE_SOURCE.replace("/run/gpuaas-sessions", str(tmp_path / "sessions"))
    words = ["/bin/sh", "-c", script, "gpuaas-leases", "ask", str(door), login, key_id]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == (answer, "")
