"""Check a directory tree that is packed into one tar: no entry may lead out of it, wherever it is unpacked."""

import re
import tarfile
from pathlib import Path, PurePosixPath
from typing import BinaryIO

_TAR = re.compile(r"(^|[/.+-])(x-)?tar$")
MOST_ENTRIES = 1_000_000
LARGEST_HEADER = 1 << 20


class UnsafeTreeError(ValueError):
    """Something in the tree must not be unpacked; the message says what and why."""


def is_tree(media_type: str) -> bool:
    """Whether the media type is a tar. A compressed one is a file like any other: it is not inspected."""
    return _TAR.search(media_type) is not None


class TreeCheck:
    """Checks one entry after the other, in the order in which they are unpacked."""

    def __init__(self) -> None:
        self._links: set[PurePosixPath] = set()
        self._count = 0

    def entry(self, name: str) -> PurePosixPath:
        path = PurePosixPath(name)
        self._count += 1
        if self._count > MOST_ENTRIES:
            raise UnsafeTreeError(f"it has more than {MOST_ENTRIES} entries")
        if path.is_absolute() or ".." in path.parts or "\x00" in name:
            raise UnsafeTreeError(f"{name[:200]!r} leads out of the tree")
        if self._links and any(parent in self._links for parent in path.parents):
            raise UnsafeTreeError(f"{name[:200]!r} leads through a link")
        return path

    def symbolic_link(self, name: str, target: str) -> None:
        path, led = self.entry(name), PurePosixPath(target)
        up = [part == ".." for part in led.parts]
        # Up first and then down, never up again: what is on the way down may be a link itself.
        if led.is_absolute() or not target or sum(up) > len(path.parent.parts) or any(up[sum(up) :]):
            raise UnsafeTreeError(f"{name[:200]!r} is a link out of the tree: {target[:200]!r}")
        self._links.add(path)

    def hard_link(self, name: str, target: str) -> None:
        self.entry(name)
        led = PurePosixPath(target)
        if led.is_absolute() or ".." in led.parts or any(led == link or link in led.parents for link in self._links):
            raise UnsafeTreeError(f"{name[:200]!r} is a link out of the tree: {target[:200]!r}")


class _Headers:
    """A file of which only headers are read: one that claims to be huge is not taken into memory."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= LARGEST_HEADER:
            raise UnsafeTreeError("it has a header that is too large")
        return self._file.read(size)


def check_tar(path: Path) -> None:
    """Raise UnsafeTreeError if this is no tar, or an entry leads out of it or is neither file, directory nor link."""
    check = TreeCheck()
    try:
        with path.open("rb") as file, tarfile.open(fileobj=_Headers(file), mode="r:") as tar:  # type: ignore[call-overload]
            for member in tar:
                # Nothing of what was seen is needed again.
                tar.members.clear()
                if member.issym():
                    check.symbolic_link(member.name, member.linkname)
                elif member.islnk():
                    check.hard_link(member.name, member.linkname)
                elif member.isreg() or member.isdir():
                    check.entry(member.name)
                else:
                    raise UnsafeTreeError(f"{member.name[:200]!r} is neither a file, a directory nor a link")
    except (tarfile.TarError, EOFError, OverflowError) as error:
        raise UnsafeTreeError(f"it is not a tar: {error}") from error
