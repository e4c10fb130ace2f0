"""A member that fails again and again is left alone for a while; its neighbours are not. Deadlines in virtual time."""

import asyncio
import itertools

import pytest

from gpuaas_contract.base import JsonObject
from gpuaas_sdk import MachineUnreachableError, OperationContext
from gpuaas_sdk.runtime.breaker import OPEN_SECONDS, OPENS_AFTER, Breakers
from gpuaas_sdk.testing import VirtualTimeLoop

from .sdk_test_platform import MemoryPlatform


def test_it_opens_after_failures_in_a_row_and_closes_with_a_success() -> None:
    breakers = Breakers(opens_after=2, open_seconds=10)
    breakers.failed("mem_1", 100)
    assert breakers.open_until("mem_1") == 0
    breakers.failed("mem_1", 101)
    assert (breakers.open_until("mem_1"), breakers.open_until("mem_2")) == (111, 0)
    breakers.failed("mem_1", 112)
    assert breakers.open_until("mem_1") == 122, "one try, and it is open again"
    breakers.succeeded("mem_1")
    assert breakers.open_until("mem_1") == 0


async def _broken_member() -> tuple[list[float], list[float]]:
    platform = MemoryPlatform()
    tries: dict[str | None, list[float]] = {"mem_1": [], "mem_2": []}

    async def handle(operation: OperationContext) -> JsonObject:
        member = operation.operation.member_id
        tries[member].append(asyncio.get_running_loop().time())
        if member == "mem_1" and len(tries[member]) <= OPENS_AFTER + 1:
            raise MachineUnreachableError("no answer")
        return {}

    controller = platform.controller({"add": handle})
    running = asyncio.create_task(controller.run())
    broken = platform.request("add", member="mem_1", seconds=86_400)
    for _ in range(20):
        await platform.until(platform.request("add", member="mem_2", seconds=86_400), "succeeded", 60)
    await platform.until(broken, "succeeded", 3_600)
    controller.stop()
    await running
    return tries["mem_1"], tries["mem_2"]


def test_a_broken_member_is_left_alone_for_a_while_and_its_neighbour_is_not() -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        broken, neighbour = runner.run(_broken_member())
    pauses = [after - before for before, after in itertools.pairwise(broken)]
    assert len(neighbour) == 20
    # Differences of moments in binary fractions: a pause of 60 s may read as 59.999999999.
    assert all(pause > OPEN_SECONDS - 0.001 for pause in pauses[OPENS_AFTER - 1 :]), pauses
    assert all(pause < OPEN_SECONDS - 0.001 for pause in pauses[: OPENS_AFTER - 1]), pauses


async def _late() -> tuple[str, float]:
    platform = MemoryPlatform()

    async def handle(operation: OperationContext) -> JsonObject:
        await asyncio.sleep(10_000)
        return {}

    controller = platform.controller({"add": handle})
    running = asyncio.create_task(controller.run())
    ended = await platform.until(platform.request("add", seconds=1_800), "failed", 3_600)
    controller.stop()
    await running
    assert ended.error is not None
    return ended.error.code, asyncio.get_running_loop().time()


def test_half_an_hour_until_a_deadline_takes_no_time() -> None:
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        code, at = runner.run(_late())
    assert code == "deadline_exceeded"
    assert at == pytest.approx(1_800, abs=1)
