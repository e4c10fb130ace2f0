"""A directory as one tar, the same bytes for the same content, with nothing in it that leads out of it."""

import os
import tarfile
from pathlib import Path

from gpuaas_contract.trees import TreeCheck, UnsafeTreeError

__all__ = ["UnsafeTreeError", "pack_directory"]


def pack_directory(directory: Path, target: Path) -> None:
    check = TreeCheck()
    with tarfile.open(target, "w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(directory.rglob("*")):
            tar_path = path.relative_to(directory).as_posix()
            if path.is_symlink():
                check.symbolic_link(tar_path, os.readlink(path))
            elif path.is_file() or path.is_dir():
                check.entry(tar_path)
            else:
                raise UnsafeTreeError(f"{tar_path} is neither a file, a directory nor a link")
            entry = tar.gettarinfo(path, tar_path)
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mtime = 0
            if entry.isreg():
                with path.open("rb") as file:
                    tar.addfile(entry, file)
            else:
                tar.addfile(entry)
