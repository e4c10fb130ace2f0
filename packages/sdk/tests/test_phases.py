"""Phases, work on many machines, and facts."""

import asyncio

import pytest

from gpuaas_contract.base import JsonObject
from gpuaas_sdk import (
    CommandResult,
    Machine,
    OperationContext,
    OperationFailed,
    Phase,
    on_each,
    read_facts,
    run_phases,
)
from gpuaas_sdk.errors import ProtocolError
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
gpu=/dev/nvidia1
gpu=/dev/nvidia0
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
    assert (facts.os, facts.cpus, facts.gpus) == ("debian", 2, ("/dev/nvidia0", "/dev/nvidia1"))
    assert facts.clock_skew_seconds < -1_000_000
    with pytest.raises(ProtocolError):
        await read_facts(FakeMachine(answers={"nproc": CommandResult(0, "garbled", "")}))
