"""How much room the registry's files take, where this process can read them."""

import asyncio
import os
import shutil
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

KEEP_SECONDS = 10.0
"""To look through all files takes a while; what one owner has is looked at each time."""


class Space:
    def __init__(self, data: Path | None) -> None:
        self._root = None if data is None else data / "docker/registry/v2"
        self._data = data
        self._total: tuple[float, int] | None = None

    @property
    def is_known(self) -> bool:
        return self._root is not None

    async def free(self) -> int | None:
        """Of the file system that the registry writes to; None where it is somewhere else."""
        if self._data is None or not self._data.is_dir():
            return None
        return (await asyncio.to_thread(shutil.disk_usage, self._data)).free

    async def used_by(self, owner: str) -> int:
        """Bytes of all files that the repositories of an app or a project name, and of uploads under way there."""
        return await asyncio.to_thread(self._used_by, owner)

    async def total(self) -> int:
        now = time.monotonic()
        if self._total is None or now - self._total[0] > KEEP_SECONDS:
            self._total = (now, await asyncio.to_thread(self._all))
        return self._total[1]

    def _used_by(self, owner: str) -> int:
        assert self._root is not None
        used, files = 0, set[str]()
        for repository in _below(self._root / "repositories" / owner):
            used += _uploads(repository)
            files |= {file.name for file in _below(repository / "_layers/sha256")}
        blobs = self._root / "blobs/sha256"
        # A link outlives the file that garbage collection has freed.
        return used + sum(_size(blobs / name[:2] / name / "data") for name in files)

    def _all(self) -> int:
        assert self._root is not None
        blobs = (blob for start in _below(self._root / "blobs/sha256") for blob in _below(start))
        used = sum(_size(blob / "data") for blob in blobs)
        for kind in _below(self._root / "repositories"):
            used += sum(_uploads(repository) for owner in _below(kind) for repository in _below(owner))
        return used


def _uploads(repository: Path) -> int:
    return sum(_size(upload / "data") for upload in _below(repository / "_uploads"))


def _below(directory: Path) -> Iterator[Path]:
    with suppress(OSError):
        yield from directory.iterdir()


def _size(file: Path) -> int:
    try:
        return os.stat(file).st_size
    except OSError:
        return 0
