"""Debian's libfaketime for one daemon of a slice: its clock alone is wrong, not the machine's and not the host's."""

from pathlib import Path

from gpuaas_sdk.bundles.building import Apt, cache_directory, find_sources

from .lxc_machine import LxcMachine

LIBRARY = "/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1"
_DEB = "/tmp/libfaketime.deb"


def fetch_library(dpkg_status: Path) -> bytes:
    """From the archive once, as the packages of the bundle are; then from the cache."""
    apt = Apt(cache_directory() / "apt", dpkg_status, find_sources())
    kept = sorted(apt.archives.glob("libfaketime_*.deb"))
    if not kept:
        apt.run("update")
        kept = [deb for deb in apt.fetch(["libfaketime"]) if deb.name.startswith("libfaketime_")]
    return kept[-1].read_bytes()


async def install_library(machine: LxcMachine, deb: bytes) -> None:
    await machine.write_file(_DEB, deb)
    installed = await machine.read(f"dpkg --install {_DEB} && rm {_DEB} && test -e {LIBRARY}")
    assert installed.ok, installed.stderr


async def set_clock_of(machine: LxcMachine, unit: str, offset: str) -> None:
    """Of this daemon alone. `offset` as libfaketime has it: "+1h"."""
    directory = f"/run/systemd/system/{unit}.d"
    drop_in = f"[Service]\nEnvironment=LD_PRELOAD={LIBRARY} FAKETIME={offset}\n"
    made = await machine.read(f"mkdir -p {directory}")
    assert made.ok, made.stderr
    await machine.write_file(f"{directory}/faketime.conf", drop_in)
    await _restart(machine, unit)


async def put_clock_right(machine: LxcMachine, unit: str) -> None:
    removed = await machine.read(f"rm -r /run/systemd/system/{unit}.d")
    assert removed.ok, removed.stderr
    await _restart(machine, unit)


async def remove_library(machine: LxcMachine) -> None:
    removed = await machine.read("dpkg --purge libfaketime")
    assert removed.ok, removed.stderr


async def _restart(machine: LxcMachine, unit: str) -> None:
    restarted = await machine.read(f"systemctl daemon-reload && systemctl restart {unit}")
    assert restarted.ok, restarted.stderr
