"""The same work on many machines at once."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from gpuaas_sdk.machines.base import Machine

Result = TypeVar("Result")
AT_ONCE = 32


async def on_each(
    machines: Iterable[Machine], work: Callable[[Machine], Awaitable[Result]], *, at_once: int = AT_ONCE
) -> dict[str, Result]:
    """By host name, each machine once. The first failure ends the rest and is raised as it is."""
    chosen = {machine.allocation_id: machine for machine in machines}.values()
    free = asyncio.Semaphore(at_once)

    async def one(machine: Machine) -> Result:
        async with free:
            return await work(machine)

    try:
        async with asyncio.TaskGroup() as group:
            tasks = {machine.hostname: group.create_task(one(machine)) for machine in chosen}
    except ExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return {hostname: task.result() for hostname, task in tasks.items()}
