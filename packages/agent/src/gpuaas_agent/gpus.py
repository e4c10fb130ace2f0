"""The choice of GPUs for a new slice. A GPU belongs to one slice only; LXD's own records say who has which."""

import re
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from glob import glob

from gpuaas_agent.errors import PermanentError
from gpuaas_agent.lxd import Instance, Lxd


def find_gpu_devices(pattern: str) -> list[str]:
    return sorted(glob(pattern), key=_natural)


def _natural(path: str) -> list[tuple[int, str]]:
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", path)]


def used_gpu_devices(instances: Iterable[Instance]) -> set[str]:
    """List the GPUs in use across all environments of the host: they share its devices."""
    return {
        device["source"]
        for instance in instances
        for device in instance.devices.values()
        if device.get("type") == "unix-char" and "source" in device
    }


def choose_gpu_devices(count: int, devices: list[str], used: set[str]) -> list[str]:
    free = [device for device in devices if device not in used]
    if len(free) < count:
        raise PermanentError(f"cannot give {count} GPUs: the host has {len(devices)}, of which {len(free)} are free")
    return free[:count]


class GpuPool:
    def __init__(self, lxd: Lxd, pattern: str) -> None:
        self._lxd = lxd
        self._pattern = pattern
        self._promised: set[str] = set()

    @asynccontextmanager
    async def reserve(self, count: int) -> AsyncIterator[list[str]]:
        """Choose devices, and hold the choice until the caller has made the instance that records it."""
        if count == 0:
            yield []
            return
        used = used_gpu_devices(await self._lxd.list_instances())
        # From here to the promise nothing awaits, so two callers cannot choose the same device.
        chosen = choose_gpu_devices(count, find_gpu_devices(self._pattern), used | self._promised)
        self._promised |= set(chosen)
        try:
            yield chosen
        finally:
            self._promised -= set(chosen)
