"""Check a directory tree that is packed into one tar: no entry may lead out of it, wherever it is unpacked, nor give
rights to whoever runs it."""

import bz2
import gzip
import lzma
import re
import tarfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, cast
from urllib.parse import unquote

_TAR = re.compile(r"(^|[/.+-])(x-)?tar$")
MOST_ENTRIES = 1_000_000
LARGEST_HEADER = 1 << 20
SETUID, SETGID = 0o4000, 0o2000
MOST_EXPANSION, LEAST_EXPANDED = 256, 1 << 30
"""How much a compressed tar may become: so many times its size, and that much in any case."""

_Opener = Callable[[BinaryIO], BinaryIO]
_ZSTANDARD = b"\x28\xb5\x2f\xfd"


def _opener(module_open: Any) -> _Opener:
    return lambda file: cast(BinaryIO, module_open(file, "rb"))


_COMPRESSIONS: dict[bytes, _Opener] = {
    b"\x1f\x8b": _opener(gzip.open),
    b"BZh": _opener(bz2.open),
    b"\xfd7zXZ\x00": _opener(lzma.open),
    b"\x5d\x00\x00": _opener(lzma.open),
}
"""By their first bytes. Python has no way to open the other one."""


class UnsafeTreeError(ValueError):
    """Something in the tree must not be unpacked; the message says what and why."""


def is_tree(media_type: str) -> bool:
    """Whether the media type says that this is a tar that is not compressed."""
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

    def __init__(self, file: BinaryIO, longest: int | None) -> None:
        self._file = file
        self._longest = longest
        self.tell = file.tell

    def seek(self, position: int) -> int:
        if self._longest is not None and position > self._longest:
            raise UnsafeTreeError(f"it expands to more than {self._longest} bytes, which is too much for its size")
        return self._file.seek(position)

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= LARGEST_HEADER:
            raise UnsafeTreeError("it has a header that is too large")
        self.seek(self.tell())
        return self._file.read(size)


def check_file(path: Path, media_type: str) -> None:
    """Check a file before it is sent or shown to a machine: whatever its media type says, a tar is looked into."""
    with path.open("rb") as file:
        unreadable = file.read(len(_ZSTANDARD)) == _ZSTANDARD
    if unreadable and "tar" in _words(media_type):
        raise UnsafeTreeError("it is compressed with zstd, which cannot be looked into: use gzip or xz")
    if is_tree(media_type) or _begins_like_a_tar(path):
        check_tar(path, privileged=declares_privileges(media_type))


def check_tar(path: Path, *, privileged: bool = False) -> None:
    """Raise UnsafeTreeError if this is no tar, also a compressed one, or if an entry must not be unpacked.

    Nothing may lead out of the tree. Without `privileged` an entry is a file, a directory or a link, and no file gives
    rights to whoever runs it, by its mode or by a capability."""
    check = TreeCheck()
    try:
        with _unpacked(path) as headers, tarfile.open(fileobj=headers, mode="r:") as tar:  # type: ignore[call-overload]
            for member in tar:
                # Nothing of what was seen is needed again.
                tar.members.clear()
                if member.issym():
                    check.symbolic_link(member.name, member.linkname)
                elif member.islnk():
                    check.hard_link(member.name, member.linkname)
                else:
                    check.entry(member.name)
                if not privileged:
                    _refuse_privileges(member, {**tar.pax_headers, **member.pax_headers})
    except (tarfile.TarError, EOFError, OverflowError, OSError, lzma.LZMAError, zlib.error) as error:
        if isinstance(error, FileNotFoundError | PermissionError):
            raise
        raise UnsafeTreeError(f"it is not a tar: {error}") from error


def declares_privileges(media_type: str) -> bool:
    """Whether the media type says that the tree holds devices, or files that give rights to whoever runs them, such as
    `application/vnd.gpuaas.directory.v1.privileged.tar`."""
    return "privileged" in _words(media_type)


def _words(media_type: str) -> list[str]:
    return re.split(r"[/.+-]", media_type)


def _refuse_privileges(member: tarfile.TarInfo, extended: Mapping[str, str]) -> None:
    name, declare = repr(member.name[:200]), "declare it by a media type with `.privileged.`, or pack it without"
    if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
        raise UnsafeTreeError(f"{name} is neither a file, a directory nor a link: {declare}")
    # On a directory the bit for the group only says whose the files in it are.
    if member.mode & (SETUID if member.isdir() else SETUID | SETGID):
        raise UnsafeTreeError(f"{name} runs with the rights of its owner (setuid or setgid): {declare}")
    for key in extended:
        if unquote(key).lower().endswith("xattr.security.capability"):
            raise UnsafeTreeError(f"{name} gives capabilities to whoever runs it: {declare}")


@contextmanager
def _unpacked(path: Path) -> Iterator[_Headers]:
    with path.open("rb") as file:
        start = file.read(6)
        file.seek(0)
        opener = next((opener for magic, opener in _COMPRESSIONS.items() if start.startswith(magic)), None)
        if opener is None:
            yield _Headers(file, None)
            return
        with opener(file) as inside:
            yield _Headers(inside, path.stat().st_size * MOST_EXPANSION + LEAST_EXPANDED)


def _begins_like_a_tar(path: Path) -> bool:
    try:
        with _unpacked(path) as headers:
            tarfile.TarInfo.frombuf(headers.read(tarfile.BLOCKSIZE), "utf-8", "surrogateescape")
    except (tarfile.HeaderError, EOFError, OSError, lzma.LZMAError, zlib.error):
        return False
    return True
