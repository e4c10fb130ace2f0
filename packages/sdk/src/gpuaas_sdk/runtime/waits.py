"""A wait inside a step: it ends with the condition, with a cancellation, or with its own time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from gpuaas_sdk.errors import ANSWERS_LATER
from gpuaas_sdk.machines.base import MachineUnreachableError
from gpuaas_sdk.runtime.errors import OperationFailed, RetryLater

Found = TypeVar("Found")
TIMED_OUT = "wait_timed_out"
NOT_YET = (RetryLater, MachineUnreachableError, *ANSWERS_LATER)


async def wait_for(
    what: str,
    condition: Callable[[], Awaitable[Found | None]],
    *,
    every: float,
    seconds: float | None,
    cancelled: asyncio.Event,
    check_cancelled: Callable[[], None],
) -> Found:
    if every <= 0 or (seconds is not None and seconds <= 0):
        raise ValueError(f"cannot wait for {what}: every and seconds are more than 0")
    loop = asyncio.get_running_loop()
    give_up = None if seconds is None else loop.time() + seconds
    last = ""
    while True:
        check_cancelled()
        try:
            if (found := await condition()) is not None:
                return found
        except NOT_YET as error:
            # What is handed back begins anew with its first phase: here it is only asked again.
            last = f": {error}"
        if give_up is not None and loop.time() + every > give_up:
            raise OperationFailed(TIMED_OUT, f"waited {seconds:g} s for {what}{last}", retryable=True)
        try:
            async with asyncio.timeout(every):
                await cancelled.wait()
        except TimeoutError:
            continue
