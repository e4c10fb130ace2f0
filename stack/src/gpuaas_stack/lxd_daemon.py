"""The LXD daemon of this machine, with or without systemd. It is shared: the demo, the tests and whatever a
person does with it use the same one, so each environment says that it uses it, and the last one out stops
it, if it was we who started it and nobody else's machines run on it."""

from __future__ import annotations

import contextlib
import fcntl
import json
import re
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from gpuaas_stack import users
from gpuaas_stack.errors import StackError
from gpuaas_stack.lxd_api import LxdApi
from gpuaas_stack.processes import ProcessId, alive, end, identify, wait_gone

LXCFS_MOUNT = Path("/var/lib/lxcfs")
LOG_DIR = Path("/var/log/gpuaas")


class LxdDaemon:
    def __init__(self, socket: Path, run_dir: Path) -> None:
        self.api = LxdApi(socket)
        self.directory = socket.parent
        self.run_dir = run_dir
        self.environments = run_dir / "environments"

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        users.ensure_dir(self.run_dir, mode=0o700)
        users.ensure_dir(self.environments, mode=0o700)
        with (self.run_dir / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield

    def acquire(self, environment: str) -> bool:
        """Makes LXD answer and notes the user. True if lxcfs had died: what runs in machines lost it."""
        with self._locked():
            (self.environments / environment).touch()
            lost_lxcfs = self._ensure_lxcfs()
            if not self.api.answers():
                self._start_lxd()
            # Images come from this machine only; a refresh would look for a server that is not there.
            self.api.patch_config("/1.0", {"images.auto_update_interval": "0"})
            return lost_lxcfs

    def revive(self, environment: str) -> bool:
        """Starts LXD again if it died while this environment uses it; says whether that was so."""
        if self.api.answers():
            return False
        with self._locked():
            # Meanwhile somebody else may have started it, or this environment may have been taken down.
            if self.api.answers() or not self.used_by(environment):
                return False
            self._start_lxd()
            return True

    def release(self, environment: str) -> str:
        """Takes the note away, stops what nobody needs any more, and says what it did."""
        with self._locked():
            (self.environments / environment).unlink(missing_ok=True)
            others = sorted(path.name for path in self.environments.iterdir())
            if others:
                return f"LXD goes on for {', '.join(others)}"
            if self._recorded("lxd") is None:
                return "LXD was not started by this stack and goes on" if self.api.answers() else "LXD is stopped"
            if self.api.answers():
                busy = self._running_instances()
                if busy:
                    return f"LXD goes on: machines that are not of this stack run on it ({', '.join(busy)})"
                self._stop_lxd()
            self._stop_lxcfs()
            self._unmount_leftovers()
            return "LXD is stopped"

    def used_by(self, environment: str) -> bool:
        return (self.environments / environment).exists()

    def _running_instances(self) -> list[str]:
        instances = self.api.get("/1.0/instances?recursion=1&all-projects=true")
        return [str(item["name"]) for item in instances if item["status"] != "Stopped"]

    # -- starting ---------------------------------------------------------------------------------------

    def _ensure_lxcfs(self) -> bool:
        if _lxcfs_answers():
            return False
        had_died = _mounted(LXCFS_MOUNT)
        if had_died:
            # Killed: its mount stays behind and answers nothing but errors.
            subprocess.run(["umount", "--lazy", str(LXCFS_MOUNT)], check=True)
        LXCFS_MOUNT.mkdir(parents=True, exist_ok=True)
        self._start("lxcfs", ["lxcfs", str(LXCFS_MOUNT)])
        deadline = time.monotonic() + 20
        while not _lxcfs_answers():
            if time.monotonic() > deadline:
                raise StackError(f"cannot start lxcfs: see {LOG_DIR}/lxcfs.log")
            time.sleep(0.02)
        return had_died

    def _start_lxd(self) -> None:
        self._start("lxd", ["lxd", "--group", "lxd", "--logfile", str(LOG_DIR / "lxd.log")])
        self._wait_ready()

    def _wait_ready(self) -> None:
        done = subprocess.run(
            ["lxd", "waitready", "--timeout=60"], check=False, env=self._environment(), capture_output=True
        )
        if done.returncode != 0:
            raise StackError(f"cannot start LXD: not ready after 60 s, see {LOG_DIR}/lxd.log")

    def _environment(self) -> dict[str, str]:
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return {"PATH": path, "LANG": "C.UTF-8", "LXD_DIR": str(self.directory), "HOME": "/root"}

    def _start(self, name: str, argv: list[str]) -> None:
        users.ensure_dir(LOG_DIR, mode=0o700)
        with (LOG_DIR / f"{name}.out").open("ab") as log:
            # Detached through a shell that ends at once, so that init is the parent and reaps it.
            script = 'setsid "$@" </dev/null >&2 & echo $!'
            done = subprocess.run(
                ["sh", "-c", script, "sh", *argv],
                check=True,
                env=self._environment(),
                cwd="/",
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        process = identify(int(done.stdout))
        if process is None:
            raise StackError(f"cannot start {name}: it ended at once, see {LOG_DIR}/{name}.out")
        users.write_private(self.run_dir / f"{name}.json", json.dumps(process.to_json()))

    # -- stopping ---------------------------------------------------------------------------------------

    def _recorded(self, name: str) -> ProcessId | None:
        try:
            return ProcessId.from_json(json.loads((self.run_dir / f"{name}.json").read_text()))
        except FileNotFoundError:
            return None

    def _stop_lxd(self) -> None:
        process = self._recorded("lxd")
        # LXD's own shutdown also takes down bridges and unmounts pools; a plain signal would not.
        subprocess.run(["lxd", "shutdown", "--timeout=60"], check=False, env=self._environment(), capture_output=True)
        if process and not wait_gone(process, 30):
            end(process)
        (self.run_dir / "lxd.json").unlink(missing_ok=True)

    def _stop_lxcfs(self) -> None:
        process = self._recorded("lxcfs")
        if process and alive(process):
            end(process)
        if process:
            if _mounted(LXCFS_MOUNT):
                subprocess.run(["umount", "--lazy", str(LXCFS_MOUNT)], check=False)
            (self.run_dir / "lxcfs.json").unlink(missing_ok=True)

    def _unmount_leftovers(self) -> None:
        for target in reversed(_mounts_below(self.directory)):
            subprocess.run(["umount", "--lazy", target], check=False, capture_output=True)


def _lxcfs_answers() -> bool:
    """Reads a file: names and attributes are answered from the kernel's cache also when lxcfs is dead."""
    try:
        return _mounted(LXCFS_MOUNT) and bool((LXCFS_MOUNT / "proc" / "uptime").read_text())
    except OSError:
        return False


def _mounts_below(directory: Path) -> list[str]:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    targets = [re.sub(r"\\040", " ", line.split()[1]) for line in lines]
    return [target for target in targets if target.startswith(f"{directory}/")]


def _mounted(path: Path) -> bool:
    return any(line.split()[1] == str(path) for line in Path("/proc/self/mounts").read_text().splitlines())
