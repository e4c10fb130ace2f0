"""A directory as one tar, the same bytes for the same content, with nothing in it that leads out of it."""

import os
import tarfile
from pathlib import Path


class UnsafeTreeError(ValueError):
    """Something in the directory must not be packed; the message says what and why."""


def pack_directory(directory: Path, target: Path) -> None:
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(directory.rglob("*")):
            tar_path = path.relative_to(directory).as_posix()
            _check(path, tar_path, directory)
            entry = tar.gettarinfo(path, tar_path)
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mtime = 0
            if entry.isreg():
                with path.open("rb") as file:
                    tar.addfile(entry, file)
            else:
                tar.addfile(entry)


def _check(path: Path, shown: str, directory: Path) -> None:
    if path.is_symlink():
        led = os.readlink(path)
        inside = os.path.normpath(os.path.join(os.path.dirname(shown), led))
        if os.path.isabs(led) or inside.startswith(".."):
            raise UnsafeTreeError(f"{shown} is a link out of {directory}: {led}")
    elif not (path.is_file() or path.is_dir()):
        raise UnsafeTreeError(f"{shown} is neither a file, a directory nor a link")
