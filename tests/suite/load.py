"""A bounded load: every core kept busy beside the tests, for no longer than they run."""

import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

LIMIT_SECONDS = 4 * 3600
"""Far more than a round takes: whoever is forgotten ends then, if not with the round."""


def _burn(parent: int) -> None:
    end = time.monotonic() + LIMIT_SECONDS
    while time.monotonic() < end and os.getppid() == parent:
        sum(range(200_000))


@contextmanager
def busy_cores() -> Iterator[None]:
    processes = [
        multiprocessing.Process(target=_burn, args=(os.getpid(),), daemon=True) for _ in range(os.cpu_count() or 1)
    ]
    for process in processes:
        process.start()
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()
