"""Logs of a bounded size. A service holds its log open for appending, so that its end is copied aside and the file
emptied: the service goes on at the start."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import pwd
import stat
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from gpuaas_stack.users import write_private

MIB = 1 << 20
# Of every log there is the present file and the one before it.
FILES_OF_A_LOG = 2
PART_OF_LXD = 10
"""One in so many bytes is for LXD and lxcfs, whose logs lie apart: environments share them."""


@dataclass(frozen=True)
class Log:
    path: Path
    before: Path
    """Where its end is copied to: never into a directory of somebody else's, where root could be led astray."""
    owner: str = "root"

    @classmethod
    def beside(cls, path: Path) -> Log:
        return cls(path, path.with_name(f"{path.name}.1"))


@dataclass(frozen=True)
class LogLimits:
    """How the supervisor keeps logs small. It reads this from a file, so that either side may die and look again."""

    total_bytes: int
    more: dict[str, str]
    """Logs that services write by themselves, with their owners."""

    def write(self, path: Path) -> None:
        text = json.dumps(asdict(self))
        if not path.exists() or path.read_text() != text:
            write_private(path, text)

    @classmethod
    def read(cls, path: Path) -> LogLimits | None:
        try:
            value = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        return cls(**value)

    def logs(self, directory: Path) -> list[Log]:
        """List the logs of all services, also of those that do not run any more."""
        own = [Log.beside(path) for path in directory.glob("*.log")]
        return own + [
            Log(Path(path), directory / f"{Path(path).parent.parent.name}-{Path(path).name}.1", owner)
            for path, owner in self.more.items()
        ]


def bytes_of_services(mib: int) -> int:
    return mib * MIB * (PART_OF_LXD - 1) // PART_OF_LXD


def bytes_of_lxd(mib: int) -> int:
    return mib * MIB // PART_OF_LXD


def trim(logs: Iterable[Log], total: int) -> list[Path]:
    """Keep all these logs together below a number of bytes, each with an equal part; return those that were cut."""
    known = [log for log in logs if log.path.exists()]
    if not known:
        return []
    limit = total // (len(known) * FILES_OF_A_LOG)
    cut = []
    for log in known:
        # Logs are no reason for the services to end: one that cannot be looked at now is looked at again.
        with contextlib.suppress(OSError):
            if _trim(log, limit):
                cut.append(log.path)
    return cut


def trim_shared(directory: Path, total: int) -> list[Path]:
    """Keep the logs of a directory that several environments look after; where another one does it now, it is done."""
    if not directory.is_dir():
        return []
    with (directory / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return []
        return trim(
            [Log.beside(path) for path in sorted(directory.iterdir()) if path.suffix in {".log", ".out"}], total
        )


def _trim(log: Log, limit: int) -> bool:
    if log.path.stat().st_size <= limit:
        # There are more logs now than when it was copied, or less room was asked for.
        if log.before.exists() and log.before.stat().st_size > limit:
            with log.before.open("rb") as source:
                _copy_end(source.fileno(), log.before, limit)
        return False
    source_fd = os.open(log.path, os.O_RDWR | os.O_NOFOLLOW)
    try:
        status = os.fstat(source_fd)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != pwd.getpwnam(log.owner).pw_uid:
            return False
        # On a full disk there is no copy, and the room is needed all the more.
        with contextlib.suppress(OSError):
            _copy_end(source_fd, log.before, limit)
        os.ftruncate(source_fd, 0)
    finally:
        os.close(source_fd)
    return True


def _copy_end(source: int, target: Path, limit: int) -> None:
    """Copy the last bytes of a file, beginning with a whole line where there is one."""
    temporary = target.with_name(f".{target.name}.new")
    start = max(0, os.fstat(source).st_size - limit)
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as written:
            # What is appended meanwhile comes along, though no more than fits.
            while (room := limit - written.tell()) > 0 and (chunk := os.pread(source, min(MIB, room), start)):
                written.write((chunk.partition(b"\n")[2] or chunk) if start and not written.tell() else chunk)
                start += len(chunk)
        temporary.rename(target)
    finally:
        temporary.unlink(missing_ok=True)
