"""The name server of a bridge: LXD starts one dnsmasq for each, and may lose it when it is killed.

One that LXD has lost holds the gateway's address, so that LXD cannot start another, nor the network.
"""

import os
import select
import signal
from pathlib import Path

PROCESSES = Path("/proc")
PATIENCE = 5.0


def is_running(lxd_dir: Path, bridge: str) -> bool:
    """Say whether the name server that LXD has recorded runs."""
    pid = _recorded(lxd_dir, bridge)
    return pid is not None and _serves(pid, lxd_dir, bridge)


def end_all(lxd_dir: Path, bridge: str) -> list[int]:
    """End every name server of this bridge of this LXD, also one of which LXD knows nothing; return their ids.

    LXD writes its pid file after the start: one that was killed in between left a process without a record."""
    found = {int(path.name) for path in PROCESSES.iterdir() if path.name.isdigit()}
    return [pid for pid in sorted(found) if _serves(pid, lxd_dir, bridge) and _end(pid, lxd_dir, bridge)]


def _recorded(lxd_dir: Path, bridge: str) -> int | None:
    try:
        lines = (lxd_dir / "networks" / bridge / "dnsmasq.pid").read_text().splitlines()
        return next((int(line.split(":")[1]) for line in lines if line.startswith("pid:")), None)
    except (OSError, ValueError):
        return None


def _serves(pid: int, lxd_dir: Path, bridge: str) -> bool:
    """Say whether a process is dnsmasq of this bridge: by its words, and outside of any machine."""
    process = PROCESSES / str(pid)
    try:
        words = (process / "cmdline").read_bytes().split(b"\0")
        same_host = (process / "ns/pid").readlink() == (PROCESSES / "self/ns/pid").readlink()
    except OSError:
        return False
    expected = (f"--interface={bridge}", f"--dhcp-leasefile={lxd_dir}/networks/{bridge}/dnsmasq.leases")
    is_dnsmasq = words[0].rpartition(b"/")[2] == b"dnsmasq"
    return same_host and is_dnsmasq and all(word.encode() in words for word in expected)


def _end(pid: int, lxd_dir: Path, bridge: str) -> bool:
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return False
    try:
        # Looked at again with the handle open: from here on no signal can reach another process.
        if not _serves(pid, lxd_dir, bridge):
            return False
        for number in (signal.SIGTERM, signal.SIGKILL):
            signal.pidfd_send_signal(handle, number)
            if select.select([handle], [], [], PATIENCE)[0]:
                return True
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)
    return True
