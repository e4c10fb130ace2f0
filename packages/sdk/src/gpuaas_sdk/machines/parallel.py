"""The same work on many machines at once."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from gpuaas_sdk.machines.base import ObservedMachine

Result = TypeVar("Result")
AnyMachine = TypeVar("AnyMachine", bound=ObservedMachine)
AT_ONCE = 32


async def on_each(
    machines: Iterable[AnyMachine], work: Callable[[AnyMachine], Awaitable[Result]], *, at_once: int = AT_ONCE
) -> dict[str, Result]:
    """Work on each machine once, on at most `at_once` of them at a time; return the results by host name.

    The first failure cancels the rest and is raised as it is.
    """
    chosen = {machine.allocation_id: machine for machine in machines}.values()
    free = asyncio.Semaphore(at_once)

    async def one(machine: AnyMachine) -> Result:
        async with free:
            return await work(machine)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = [(machine.hostname, group.create_task(one(machine))) for machine in chosen]
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return {hostname: task.result() for hostname, task in tasks}
