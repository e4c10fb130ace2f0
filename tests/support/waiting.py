"""Waiting for a condition, with a deadline and a sentence that says what for."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

Found = TypeVar("Found")


def wait_until(condition: Callable[[], Found], what: str, seconds: float = 60, every: float = 0.1) -> Found:
    deadline = time.monotonic() + seconds
    while True:
        if found := condition():
            return found
        assert time.monotonic() < deadline, f"waited {seconds} s until {what}"
        time.sleep(every)


async def until(
    condition: Callable[[], Awaitable[Found | None]], what: str, seconds: float = 60, every: float = 0.05
) -> Found:
    deadline = time.monotonic() + seconds
    while True:
        if found := await condition():
            return found
        assert time.monotonic() < deadline, f"waited {seconds} s until {what}"
        await asyncio.sleep(every)
