"""The LXD daemon of this machine, with or without systemd. It is shared: the demo, the tests and whatever a
person does with it use the same one, so each environment says that it uses it, and the last one out stops
it, if it was we who started it and nobody else's machines run on it.

Another one can run beside it, as on another host: with its own socket, directory and network namespace."""

from __future__ import annotations

import asyncio
import re
import subprocess
import time
from pathlib import Path
from subprocess import DEVNULL

from gpuaas_agent.errors import AgentError
from gpuaas_agent.lxd import Lxd
from gpuaas_stack import users
from gpuaas_stack.errors import StackError
from gpuaas_stack.lxcfs import Lxcfs, Shared
from gpuaas_stack.lxd_client import conversation
from gpuaas_stack.processes import alive, end, recorded, start, wait_gone

LOG_DIR = Path("/var/log/gpuaas")
HELLO_SECONDS = 5
READY_SECONDS = 60
LAST_LINES = 12
# /sys shows the links of the namespace that it was mounted in; the cgroups below it are those of the whole machine.
APART = """
set -e
mount --make-rslave /
mount --rbind /sys/fs/cgroup "$0"
mount -t sysfs sysfs /sys
mount --rbind "$0" /sys/fs/cgroup
exec "$@"
"""


class LxdDaemon(Shared):
    def __init__(self, socket: Path, run_dir: Path, network: str | None = None) -> None:
        """`network` names the network namespace that it runs in, which has to exist."""
        super().__init__(run_dir)
        self.socket = socket
        self.directory = socket.parent
        self.network = network
        # One beside another has a log of its own.
        self._log = LOG_DIR / f"{run_dir.name}.log"
        self._lxcfs = Lxcfs()

    def acquire(self, environment: str) -> bool:
        """Make LXD answer, and note the user. True if lxcfs had died: running machines lost it."""
        with self._locked():
            (self.environments / environment).touch()
            lost_lxcfs = self._lxcfs.acquire(environment)
            if not self.answers():
                self._start_lxd()
            self._keep_images()
            return lost_lxcfs

    def revive(self, environment: str) -> bool:
        """Start LXD again if it died while this environment uses it. True if it had."""
        if self.answers():
            return False
        with self._locked():
            # Meanwhile somebody else may have started it, or this environment may have been taken down.
            if self.answers() or not self.used_by(environment):
                return False
            self._start_lxd()
            return True

    def release(self, environment: str) -> str:
        """Remove the note, stop what nobody needs any more, and return what was done, in words."""
        with self._locked():
            (self.environments / environment).unlink(missing_ok=True)
            goes_on = self._why_it_goes_on()
            ours = recorded(self.run_dir / "lxd.json") is not None
            if goes_on is None and ours:
                self._stop_lxd()
                self._unmount_leftovers()
            self._lxcfs.release(environment, lxd=self.run_dir.name, goes_on=goes_on is not None)
            return goes_on or "LXD is stopped"

    def _why_it_goes_on(self) -> str | None:
        others = sorted(path.name for path in self.environments.iterdir())
        if others:
            return f"LXD goes on for {', '.join(others)}"
        if not self.answers():
            return None
        if recorded(self.run_dir / "lxd.json") is None:
            return "LXD was not started by this stack and goes on"
        busy = self._running_instances()
        return f"LXD goes on: machines that are not of this stack run on it ({', '.join(busy)})" if busy else None

    def used_by(self, environment: str) -> bool:
        return (self.environments / environment).exists()

    @conversation("ask LXD whether it answers")
    async def answers(self, lxd: Lxd) -> bool:
        try:
            async with asyncio.timeout(HELLO_SECONDS):
                await lxd.read_server()
        except (AgentError, TimeoutError):
            return False
        return True

    @conversation("configure LXD")
    async def _keep_images(self, lxd: Lxd) -> None:
        """Switch the refresh of images off: they come from this machine only, and no server has newer ones."""
        await lxd.request("PATCH", "/1.0", json={"config": {"images.auto_update_interval": "0"}})

    @conversation("list the machines of this host")
    async def _running_instances(self, lxd: Lxd) -> list[str]:
        return [item.name for item in await lxd.list_instances(all_projects=True) if item.status != "Stopped"]

    # -- starting ---------------------------------------------------------------------------------------

    def _start_lxd(self) -> None:
        words = ["lxd", "--group", "lxd", "--logfile", str(self._log)]
        if self.network is not None:
            cgroups = users.ensure_dir(self.run_dir / "cgroup", mode=0o755)
            inside = ["nsenter", f"--net=/run/netns/{self.network}", "unshare", "--mount"]
            words = [*inside, "sh", "-c", APART, str(cgroups), *words]
        start(words, self._environment(), self.run_dir / "lxd.json", self._log.with_suffix(".out"))
        self._wait_ready()

    def _wait_ready(self) -> None:
        words = ["lxd", "waitready", f"--timeout={READY_SECONDS}"]
        process = recorded(self.run_dir / "lxd.json")
        with subprocess.Popen(words, env=self._environment(), stdout=DEVNULL, stderr=DEVNULL) as waiting:
            while waiting.poll() is None:
                if process is None or not alive(process):
                    waiting.kill()
                    raise StackError(f"cannot start LXD: it ended while it was starting. {self._last_words()}")
                time.sleep(0.05)
        if waiting.returncode != 0:
            raise StackError(f"cannot start LXD: not ready after {READY_SECONDS} s, see {self._log}")

    def _last_words(self) -> str:
        """Its standard error has what it says when it gives up, also where it could not open its log."""
        path = self._log.with_suffix(".out")
        last = path.read_text(errors="replace").splitlines()[-LAST_LINES:] if path.exists() else []
        return f"The end of {path}:\n" + "\n".join(f"  {line}" for line in last)

    def _environment(self) -> dict[str, str]:
        path = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        return {"PATH": path, "LANG": "C.UTF-8", "LXD_DIR": str(self.directory), "HOME": "/root"}

    # -- stopping ---------------------------------------------------------------------------------------

    def _stop_lxd(self) -> None:
        process = recorded(self.run_dir / "lxd.json")
        # LXD's own shutdown also takes down bridges and unmounts pools; a plain signal would not.
        if self.answers():
            words = ["lxd", "shutdown", "--timeout=60"]
            subprocess.run(words, check=False, env=self._environment(), capture_output=True)
        if process and not wait_gone(process, 30):
            end(process)
        (self.run_dir / "lxd.json").unlink(missing_ok=True)

    def _unmount_leftovers(self) -> None:
        for target in reversed(_mounts_below(self.directory)):
            subprocess.run(["umount", "--lazy", target], check=False, capture_output=True)


def _mounts_below(directory: Path) -> list[str]:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    targets = [re.sub(r"\\040", " ", line.split()[1]) for line in lines]
    return [target for target in targets if target.startswith(f"{directory}/")]
