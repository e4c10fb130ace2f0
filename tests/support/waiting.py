"""Waiting for a condition, with a deadline and a sentence that says what for."""

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def wait_until(condition: Callable[[], Found], what: str, seconds: float = 60, every: float = 0.1) -> Found:
    deadline = time.monotonic() + seconds
    while True:
        if found := condition():
            return found
        assert time.monotonic() < deadline, f"waited {seconds} s until {what}"
        time.sleep(every)
