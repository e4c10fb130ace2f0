"""The wall clock, where a deadline or an expiry is compared with it: the one seam through which tests let it jump."""

import asyncio
from datetime import UTC, datetime


def now() -> datetime:
    """A loop whose time jumps (`gpuaas_sdk.testing.VirtualTimeLoop`) has a wall clock that jumps with it."""
    clock = getattr(asyncio.get_running_loop(), "wall_clock", None)
    return datetime.now(UTC) if clock is None else clock()
