"""A controller that can reach nothing but the API: no other address, no root, no file but its account."""

import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from gpuaas_stack import users
from tests.support.waiting import wait_until

PROGRAM = Path(sys.executable).parent / "slurm-app"


class NetworkOfOne:
    """A network namespace with its own loopback, on which one port leads to the API.

    Two relays, joined by a socket file, carry the connections; there is no link and no route out."""

    def __init__(self, name: str, port: int) -> None:
        self.name = name
        self.port = port
        self._directory = Path(tempfile.mkdtemp(prefix="gpuaas-relay-", dir="/var/tmp"))
        self._relays: list[subprocess.Popen[bytes]] = []

    def command(self, *words: str) -> list[str]:
        return ["ip", "netns", "exec", self.name, *words]

    def __enter__(self) -> Self:
        subprocess.run(["ip", "netns", "delete", self.name], check=False, capture_output=True)
        subprocess.run(["ip", "netns", "add", self.name], check=True)
        subprocess.run(self.command("ip", "link", "set", "lo", "up"), check=True)
        door = self._directory / "api.sock"
        outside = ["socat", f"UNIX-LISTEN:{door},fork", f"TCP:127.0.0.1:{self.port}"]
        inside = self.command("socat", f"TCP-LISTEN:{self.port},bind=127.0.0.1,fork,reuseaddr", f"UNIX-CONNECT:{door}")
        self._relays = [subprocess.Popen(words, stderr=subprocess.DEVNULL) for words in (outside, inside)]
        wait_until(lambda: self.reaches("127.0.0.1", self.port), "the API is in reach of the controller's network")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for relay in self._relays:
            relay.kill()
            relay.wait()
        subprocess.run(["ip", "netns", "delete", self.name], check=True)
        shutil.rmtree(self._directory)

    def reaches(self, address: str, port: int) -> bool:
        """Return whether a connection can be opened from inside."""
        probe = f"import socket; socket.create_connection(({address!r}, {port}), timeout=3)"
        done = subprocess.run(self.command(sys.executable, "-c", probe), check=False, capture_output=True)
        return done.returncode == 0


class IsolatedController:
    def __init__(self, network: NetworkOfOne, account: Path, program: Path = PROGRAM) -> None:
        self._program = program
        name = users.controller_user(program.name)
        users.ensure_user(name)
        user = pwd.getpwnam(name)
        os.chown(account, user.pw_uid, user.pw_gid)
        self._home = Path(tempfile.mkdtemp(prefix="gpuaas-controller-", dir="/var/tmp"))
        os.chown(self._home, user.pw_uid, user.pw_gid)
        self._log = self._home / "log"
        drop = ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--no-new-privs"]
        environment = [
            "env",
            "-i",
            f"HOME={self._home}",
            "PATH=/usr/bin:/bin",
            f"GPUAAS_API_URL=http://127.0.0.1:{network.port}",
            f"GPUAAS_SERVICE_ACCOUNT_FILE={account}",
        ]
        self._drop = network.command(*drop, "--inh-caps=-all", *environment)
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is not None:
            print(f"the controller said:\n{self._log.read_text()[-8_000:]}")
        self.end(signal.SIGTERM)
        shutil.rmtree(self._home)

    def reads(self, directory: Path) -> list[str]:
        """List the files below a directory that the controller can read."""
        look = ["find", str(directory), "-type", "f", "-readable", "-size", "+0"]
        return subprocess.run([*self._drop, *look], check=False, capture_output=True, text=True).stdout.splitlines()

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen([*self._drop, self._program, "run"], stdout=log, stderr=log)

    def restart(self) -> None:
        """Restart the controller as an update does: it hands back its leases, and another one starts."""
        self.end(signal.SIGTERM)
        self.start()

    def end(self, how: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(how)
        self._process.wait(timeout=30)
