"""Waiting for what is asked for asynchronously, with a deadline and a sentence that says what for."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

Found = TypeVar("Found")


async def until(
    condition: Callable[[], Awaitable[Found | None]], what: str, seconds: float = 60, every: float = 0.25
) -> Found:
    deadline = time.monotonic() + seconds
    while True:
        if found := await condition():
            return found
        assert time.monotonic() < deadline, f"waited {seconds} s until {what}"
        await asyncio.sleep(every)
