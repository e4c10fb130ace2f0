"""Artifacts: downloaded once into the host's cache by digest, then shown to each machine that needs them."""

import asyncio
import hashlib
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from gpuaas_agent.api import PlatformApi
from gpuaas_agent.errors import PermanentError, RetryLaterError
from gpuaas_agent.files import sync_directory
from gpuaas_agent.locks import KeyedLocks
from gpuaas_agent.slices import Progress, make_shared_dir
from gpuaas_contract.agent_link import MACHINE_ARTIFACTS_PATH, DeliverArtifact
from gpuaas_contract.trees import UnsafeTreeError, check_file

CHUNK = 1024 * 1024
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class Machines(Protocol):
    async def find(self, allocation_id: str) -> object | None: ...
    def artifacts_dir(self, allocation_id: str) -> Path: ...


def file_name(digest: str) -> str:
    if not _DIGEST.fullmatch(digest):
        raise PermanentError(f"{digest!r} is not a sha256 digest")
    return digest.replace(":", "-")


class PartialDownload:
    """The part of a file that has arrived, with its running digest; a later attempt goes on from there."""

    def __init__(self, path: Path) -> None:
        self._digest = hashlib.sha256()
        self.path = path
        self._stream = path.open("a+b")
        self._stream.seek(0)
        while chunk := self._stream.read(CHUNK):
            self._digest.update(chunk)
        self.size = self.resumed_from = self._stream.tell()

    def write(self, chunk: bytes) -> None:
        self._stream.write(chunk)
        self._digest.update(chunk)
        self.size += len(chunk)

    def restart(self) -> None:
        self._stream.truncate(0)
        self._digest = hashlib.sha256()
        self.size = self.resumed_from = 0

    @property
    def digest(self) -> str:
        return f"sha256:{self._digest.hexdigest()}"

    def finish(self, target: Path) -> None:
        # On disk before it has its name: a file with that name is never checked again, only its size is.
        self._stream.flush()
        os.fchmod(self._stream.fileno(), 0o644)
        os.fsync(self._stream.fileno())
        self._stream.close()
        self.path.replace(target)
        sync_directory(target.parent)

    def discard(self) -> None:
        self._stream.close()
        self.path.unlink(missing_ok=True)

    def close(self) -> None:
        self._stream.close()


class ArtifactManager:
    def __init__(
        self,
        cache: Path,
        api: PlatformApi,
        machines: Machines,
        show: Callable[[Path, Path], None] | None = None,
        *,
        limit: int = 20 << 30,
    ) -> None:
        self._cache = cache
        self._limit = limit
        self._api = api
        self._machines = machines
        self._show = show or link_into
        self._locks = KeyedLocks()

    async def deliver(self, spec: DeliverArtifact, progress: Progress) -> str:
        """Bring the file to the machine and return its path there."""
        name = file_name(spec.digest)
        if await self._machines.find(spec.allocation_id) is None:
            raise PermanentError(f"cannot deliver {spec.digest}: {spec.allocation_id} has no machine on this node")
        async with self._locks.hold(spec.digest):
            try:
                cached = await self._ensure_cached(spec, name, progress)
            except OSError as error:
                # A full disk, most likely: what has arrived stays, and there may be room later.
                raise RetryLaterError(f"cannot keep {spec.digest} on this host: {error.strerror}") from error
            await asyncio.to_thread(_require_safe, cached, spec)
        progress("link", f"showing {spec.digest} to the machine")
        directory = self._machines.artifacts_dir(spec.allocation_id)
        make_shared_dir(directory)
        await asyncio.to_thread(self._show, cached, directory)
        return f"{MACHINE_ARTIFACTS_PATH}/{name}"

    async def _ensure_cached(self, spec: DeliverArtifact, name: str, progress: Progress) -> Path:
        self._cache.mkdir(parents=True, exist_ok=True)
        target = self._cache / name
        if target.exists() and target.stat().st_size == spec.size:
            os.utime(target)
            return target
        progress("download", f"{spec.digest}, {spec.size} bytes")
        part = await asyncio.to_thread(PartialDownload, self._cache / f".{name}.part")
        try:
            await self._download(spec, part)
            if part.digest != spec.digest:
                resumed = part.resumed_from > 0
                part.discard()
                message = f"what was downloaded as {spec.digest} has the digest {part.digest}"
                raise RetryLaterError(message) if resumed else PermanentError(message)
            await asyncio.to_thread(part.finish, target)
        finally:
            part.close()
        await asyncio.to_thread(evict, self._cache, self._limit, target)
        return target

    async def _download(self, spec: DeliverArtifact, part: PartialDownload) -> None:
        if part.size >= spec.size:
            if part.size == spec.size:
                return
            part.restart()
        async with self._api.artifact(spec.digest, offset=part.size) as answer:
            if part.size and answer.status_code != 206:
                part.restart()
            async for chunk in answer.aiter_bytes(CHUNK):
                part.write(chunk)
                if part.size > spec.size:
                    part.discard()
                    raise PermanentError(f"{spec.digest} is longer than the {spec.size} bytes announced")
        if part.size < spec.size:
            raise RetryLaterError(f"{spec.digest} ended after {part.size} of {spec.size} bytes")


def _require_safe(file: Path, spec: DeliverArtifact) -> None:
    """Refuse a tar with what leads out of it or gives rights away, whatever it is called: whoever unpacks it on the
    machine most likely does so as root."""
    try:
        check_file(file, spec.media_type)
    except UnsafeTreeError as error:
        raise PermanentError(f"cannot deliver {spec.digest}: {error}") from error


def evict(cache: Path, limit: int, keep: Path) -> None:
    """Forget what was not asked for longest, until the cache is within its limit. What a slice has is on the disk
    anyway: to forget it would free nothing."""
    found = {path: path.stat() for path in cache.iterdir() if not path.name.startswith(".")}
    total = sum(stat.st_size for stat in found.values())
    for path, stat in sorted(found.items(), key=lambda item: item[1].st_mtime):
        if total <= limit:
            return
        if path != keep and stat.st_nlink == 1:
            path.unlink()
            total -= stat.st_size


def link_into(cached: Path, directory: Path) -> None:
    target = directory / cached.name
    if target.exists() and target.samefile(cached):
        return
    part = directory / f".{cached.name}.part"
    part.unlink(missing_ok=True)
    part.hardlink_to(cached)
    part.replace(target)


def copy_into(cached: Path, directory: Path) -> None:
    """Copy, where the machine is the host itself: through a link it could change the cache by accident."""
    target = directory / cached.name
    if target.exists() and target.stat().st_size == cached.stat().st_size:
        return
    part = directory / f".{cached.name}.part"
    part.unlink(missing_ok=True)
    shutil.copyfile(cached, part)
    part.chmod(0o444)
    part.replace(target)
