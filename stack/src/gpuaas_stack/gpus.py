"""The devices that count as GPUs on this machine: real ones, or stand-ins where there are none."""

from __future__ import annotations

import glob
import os
import shutil
import stat
from pathlib import Path

from gpuaas_stack.users import ensure_dir

REAL_DEVICES = "/dev/nvidia[0-9]*"
# The numbers of /dev/null: a character device that every machine has and that does no harm.
NULL_DEVICE = os.makedev(1, 3)


def stand_in_dir(environment: str) -> Path:
    # LXD hands out devices from below /dev only.
    return Path("/dev") / f"gpuaas-{environment}"


def remove_stand_ins(directory: Path) -> None:
    if directory.is_dir():
        shutil.rmtree(directory)


def ensure_gpus(directory: Path, stand_ins: int) -> str:
    """Make stand-ins where they are needed; return the glob of the devices to hand out."""
    if glob.glob(REAL_DEVICES) or stand_ins == 0:
        return REAL_DEVICES
    ensure_dir(directory)
    for number in range(stand_ins):
        path = directory / f"nvidia{number}"
        if not path.exists():
            os.mknod(path, stat.S_IFCHR | 0o666, NULL_DEVICE)
            path.chmod(0o666)
    return f"{directory}/nvidia[0-9]*"
