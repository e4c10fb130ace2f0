"""The software as one file: the program, and which version it is. The same content makes the same digest."""

import io
import re
import tarfile
from importlib.resources import files
from pathlib import Path

RUNTIME_VERSION = "1.0.0"


def make_bundle(output: Path, version: str = RUNTIME_VERSION) -> None:
    if not re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", version):
        raise ValueError(f"not a version: {version!r}")
    program = (files(__package__) / "files" / "rollcall").read_bytes()
    with tarfile.open(output, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content, mode in (
            ("rollcall", program, 0o755),
            ("VERSION", f"{version}\n".encode(), 0o644),
        ):
            entry = tarfile.TarInfo(name)
            entry.size, entry.mode = len(content), mode
            tar.addfile(entry, io.BytesIO(content))
