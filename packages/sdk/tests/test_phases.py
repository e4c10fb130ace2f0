"""Phases, work on many machines, and facts."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import cast

import pytest

from gpuaas_contract.base import JsonObject
from gpuaas_contract.instances import Member, MemberStatus
from gpuaas_contract.operations import Operation
from gpuaas_sdk import (
    CommandError,
    CommandResult,
    Machine,
    OperationContext,
    OperationFailed,
    Phase,
    RetryLater,
    member_in_work,
    on_each,
    read_facts,
    run_phases,
)
from gpuaas_sdk.errors import ProtocolError
from gpuaas_sdk.machines.facts import parse_facts
from gpuaas_sdk.testing import FakeMachine

from .sdk_test_platform import MemoryPlatform

FACTS = """\
hostname=node-1
os=debian
os_version=12
architecture=x86_64
cpus=2
memory_mib=2048
disk_free_mib=3000
gpu=/dev/nvidia10
gpu=/dev/nvidia2
gpu=/dev/nvidia0-ctl
uid_map=0:100000
cgroup=v2
init=systemd
clock=1
"""


async def test_phases_are_steps_in_their_order_and_end_with_the_first_that_fails() -> None:
    platform = MemoryPlatform()

    async def work(scope: str) -> JsonObject:
        return {"scope": scope}

    async def refuse(scope: str) -> None:
        raise OperationFailed("no_room", f"{scope} has no room")

    async def handle(operation: OperationContext) -> None:
        phases = [Phase("one", "One", work), Phase("two", "Two", refuse), Phase("three", "Three", work)]
        await run_phases(operation, "here", phases)

    controller = platform.controller({"add": handle})
    running = asyncio.create_task(controller.run())
    ended = await platform.until(platform.request("add"), "failed")
    controller.stop()
    await running
    assert [(step.key, step.status) for step in ended.steps] == [("one", "succeeded"), ("two", "failed")]
    assert ended.steps[0].evidence == {"scope": "here"}
    assert ended.error is not None
    assert ended.error.code == "no_room"


async def test_on_each_machine_once_and_not_too_many_at_a_time() -> None:
    machines = [FakeMachine(hostname=f"node-{n}", allocation_id=f"alc_{n}") for n in range(10)]
    at_work: set[str] = set()
    most = 0

    async def work(machine: Machine) -> str:
        nonlocal most
        at_work.add(machine.hostname)
        most = max(most, len(at_work))
        await asyncio.sleep(0)
        at_work.remove(machine.hostname)
        return machine.allocation_id

    done = await on_each([*machines, machines[0]], work, at_once=3)
    assert done == {f"node-{n}": f"alc_{n}" for n in range(10)}
    assert most == 3


async def test_the_first_failure_is_raised_as_it_is() -> None:
    async def work(machine: Machine) -> None:
        raise OperationFailed("no_room", machine.hostname)

    with pytest.raises(OperationFailed):
        await on_each([FakeMachine()], work)


async def test_facts() -> None:
    facts = await read_facts(FakeMachine(answers={"nproc": CommandResult(0, FACTS, "")}))
    assert (facts.os, facts.cpus, facts.gpus) == ("debian", 2, ("/dev/nvidia2", "/dev/nvidia10"))
    assert facts.own_user_namespace
    assert facts.clock_skew_seconds < -1_000_000
    with pytest.raises(OperationFailed, match="node-1: cannot read the machine's facts") as caught:
        await read_facts(FakeMachine(answers={"nproc": CommandResult(0, "garbled", "")}))
    assert (caught.value.code, caught.value.retryable) == ("facts_unreadable", True)
    with pytest.raises(ProtocolError, match="memory_mib"):
        parse_facts(FACTS.replace("memory_mib=2048\n", ""), 0, 0)
    with pytest.raises(CommandError):
        await read_facts(FakeMachine(answers={"nproc": CommandResult(1, "", "no")}))


async def test_an_apps_own_facts_come_in_the_same_round_trip() -> None:
    machine = FakeMachine(answers={"nproc": CommandResult(0, FACTS + "port=22\nport=80\nnoise\n", "")})
    facts = await read_facts(machine, "ports\n")
    assert facts.more == {"port": ["22", "80"]}
    assert machine.reads[0].endswith("ports\n")
    assert "more" not in facts.as_evidence()


@pytest.mark.parametrize(("clock", "skew"), [(99.0, -1.0), (100.5, 0.0), (103.0, 2.0)])
def test_the_way_there_and_back_is_no_skew(clock: float, skew: float) -> None:
    assert parse_facts(FACTS.replace("clock=1\n", f"clock={clock}\n"), 100.0, 101.0).clock_skew_seconds == skew


def test_a_host_name_has_no_domain() -> None:
    assert parse_facts(FACTS.replace("hostname=node-1", "hostname=node-1.lxd"), 0, 0).hostname == "node-1"


async def _fails(work: Callable[[OperationContext], Awaitable[None]]) -> Operation:
    platform = MemoryPlatform()
    controller = platform.controller({"add": work})
    running = asyncio.create_task(controller.run())
    ended = await platform.until(platform.request("add"), "failed")
    controller.stop()
    await running
    return ended


@pytest.mark.parametrize("usable", [True, False])
@pytest.mark.parametrize(
    "make_error",
    [lambda: CommandError("drain it", CommandResult(1, "", "busy")), lambda: OperationFailed("busy", "busy")],
)
async def test_a_step_that_failed_leaves_its_member_as_usable_as_it_says(
    make_error: Callable[[], Exception], usable: bool
) -> None:
    async def drain(operation: OperationContext) -> None:
        async with operation.step("drain", "Drain", member_usable=usable) as step:
            step.evidence = {"jobs": 2}
            raise make_error()

    ended = await _fails(drain)
    assert ended.error is not None
    assert (ended.error.member_usable, "busy" in ended.error.detail) == (usable, True)
    assert ended.steps[0].evidence == {"jobs": 2}


async def test_a_failure_brings_its_evidence_to_the_step() -> None:
    async def refuse(_: str) -> None:
        raise OperationFailed("left", "something is left", evidence={"left": ["a"]})

    async def handle(operation: OperationContext) -> None:
        await run_phases(operation, "here", [Phase("prove", "Prove", refuse)])

    assert (await _fails(handle)).steps[0].evidence == {"left": ["a"]}


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (OperationFailed("no_room", "no room"), "no room"),
        (ValueError("password hunter2"), "ValueError in the controller; its log has the details"),
        (RetryLater(1.0, "not yet"), None),
    ],
)
async def test_a_member_shows_why_its_work_failed_and_keeps_its_detail(error: Exception, shown: str | None) -> None:
    reports: list[dict[str, object]] = []

    async def report_member(member_id: str, **said: object) -> None:
        reports.append(said)

    async def get(member_id: str) -> Member:
        return cast(Member, SimpleNamespace(adapter_detail={"node": "node-1", "shard": 7, "error": "older"}))

    client = SimpleNamespace(members=SimpleNamespace(get=get))
    operation = cast(OperationContext, SimpleNamespace(operation_id="op_1", report_member=report_member, client=client))
    # What the work has reported meanwhile is not in what its caller knows.
    member = cast(Member, SimpleNamespace(id="mem_1", adapter_detail={"node": "node-0"}))
    with pytest.raises(type(error)):
        async with member_in_work(operation, member):
            raise error
    detail = {"node": "node-1", "shard": 7, "error": shown, "operation_id": "op_1"}
    failed = [{"status": MemberStatus.FAILED, "adapter_detail": detail}] if shown else []
    assert reports == [{"status": MemberStatus.CONFIGURING}, *failed]
