"""Files that must be whole after a crash."""

import os
from pathlib import Path


def write_atomically(path: Path, content: bytes, *, mode: int) -> None:
    """Put a file in place with all of its content and its mode, or not at all."""
    part = part_of(path)
    part.unlink(missing_ok=True)
    descriptor = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    part.replace(path)
    sync_directory(path.parent)


def part_of(path: Path) -> Path:
    """The file that a crash in the middle of writing leaves."""
    return path.with_name(f".{path.name}.part")


def sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
