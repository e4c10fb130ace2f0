"""lxcfs, which shows machines their own CPUs and memory. There is one for all LXD daemons of the host, so each
environment says that it uses it, and the last one out stops it, if it was we who started it."""

from __future__ import annotations

import contextlib
import fcntl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from gpuaas_stack import users
from gpuaas_stack.errors import StackError
from gpuaas_stack.processes import alive, end, recorded, start

MOUNT = Path("/var/lib/lxcfs")
RUN_DIR = Path("/run/gpuaas/lxcfs")
LOG = Path("/var/log/gpuaas/lxcfs.out")


class Shared:
    """A service that several environments use: each leaves a note while it does, under one lock."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.environments = run_dir / "environments"
        """A file for each that uses it."""

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        users.ensure_dir(self.run_dir, mode=0o700)
        users.ensure_dir(self.environments, mode=0o700)
        with (self.run_dir / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


class Lxcfs(Shared):
    def __init__(self, run_dir: Path = RUN_DIR, mount: Path = MOUNT) -> None:
        super().__init__(run_dir)
        self._mount = mount
        self._record = run_dir / "lxcfs.json"

    def acquire(self, environment: str) -> bool:
        """Make lxcfs answer, and note the user. True if it had died: running machines lost it."""
        with self._locked():
            (self.environments / environment).touch()
            if self._answers():
                return False
            had_died = self._mounted()
            if had_died:
                # Killed: its mount stays behind and answers nothing but errors.
                subprocess.run(["umount", "--lazy", str(self._mount)], check=True)
            self._mount.mkdir(parents=True, exist_ok=True)
            start(
                ["lxcfs", str(self._mount)],
                {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"},
                self._record,
                LOG,
            )
            deadline = time.monotonic() + 20
            process = recorded(self._record)
            while not self._answers():
                if process is None or not alive(process):
                    raise StackError(f"cannot start lxcfs: it ended while it was starting, see {LOG}")
                if time.monotonic() > deadline:
                    raise StackError(f"cannot start lxcfs: see {LOG}")
                time.sleep(0.02)
            return had_died

    def release(self, environment: str, *, lxd: str, goes_on: bool) -> None:
        """Remove the note, and stop lxcfs where nobody needs it any more: no environment, and no LXD that goes on
        because machines run on it that are not of this stack."""
        with self._locked():
            (self.environments / environment).unlink(missing_ok=True)
            kept = self.environments / f"the LXD {lxd}"
            if goes_on:
                kept.touch()
            else:
                kept.unlink(missing_ok=True)
            process = recorded(self._record)
            if process is None or any(self.environments.iterdir()):
                return
            if alive(process):
                end(process)
            if self._mounted():
                subprocess.run(["umount", "--lazy", str(self._mount)], check=False)
            self._record.unlink()

    def _answers(self) -> bool:
        """Read a file: names and attributes come from the kernel's cache even when lxcfs is dead."""
        try:
            return self._mounted() and bool((self._mount / "proc" / "uptime").read_text())
        except OSError:
            return False

    def _mounted(self) -> bool:
        return any(line.split()[1] == str(self._mount) for line in Path("/proc/self/mounts").read_text().splitlines())
