"""Kills at chosen moments of dpkg's work on a slice.

The moments are lines of dpkg's own status stream ("status: munge:amd64: half-installed") and commands inside of
maintainer scripts ("script: munge postinst deb-systemd-helper"), each with how often it came. A first run writes them
down; a later one is killed at one of them, with every process of its step, as by a crash.
"""

import re
from pathlib import Path

from .lxc_machine import LxcMachine

_PLACE = "/run/tripwire"
_BIN = "/usr/local/sbin"
_NAMES = (
    "dpkg",
    "adduser",
    "chown",
    "deb-systemd-helper",
    "deb-systemd-invoke",
    "ldconfig",
    "rm",
    "update-alternatives",
)
_SCRIPT = Path(__file__).with_name("tripwire.pl")
# Before, in the middle of and after the unpack, the configuration and the removal of each package. Other lines of the
# stream say the same again.
_BOUNDARIES = {
    "install": ("install|configure|trigproc", "half-installed|unpacked|installed"),
    "removal": ("remove|purge|trigproc", "half-installed|config-files|not-installed"),
}


async def set_tripwire(machine: LxcMachine, moment: str = "") -> None:
    """Without a moment it only writes down those that come."""
    await machine.write_file(f"{_BIN}/dpkg", _SCRIPT.read_bytes(), mode=0o755)
    links = "; ".join(f"ln {_BIN}/dpkg {_BIN}/{name}" for name in _NAMES[1:])
    made = await machine.read(f"mkdir {_PLACE}; {links}")
    assert made.ok, made.stderr
    if moment:
        await machine.write_file(f"{_PLACE}/wanted", f"{moment}\n")


async def clear_tripwire(machine: LxcMachine) -> tuple[list[str], str]:
    """The moments that came, and the one at which it killed."""
    files = " ".join(f"{_BIN}/{name}" for name in _NAMES)
    said = await machine.read(
        f"cd {_PLACE}; cat killed 2>/dev/null || echo; cat moments 2>/dev/null || true; cd /; rm -r {_PLACE} {files}"
    )
    assert said.ok, said.stderr
    killed, *moments = said.stdout.splitlines()
    return moments, killed


def boundaries(work: str, moments: list[str]) -> list[str]:
    """Of an install or a removal; the first of each, since what comes again is the same state of dpkg."""
    stages, states = _BOUNDARIES[work]
    wanted = re.compile(rf"(processing: ({stages}): .*|status: .*: ({states})|script: .*) #1")
    return [moment for moment in moments if wanted.fullmatch(moment)]
