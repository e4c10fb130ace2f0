"""The reference app as its team would run it: its program, its service account, and an otherwise empty environment."""

import re
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuaas_stack.stack import Stack
from tests.e2e.command_line import CommandLine
from tests.support.artifacts import signing_key

APP = Path(__file__).parents[2] / "apps" / "reference"
SLUG = "rollcall"
PROGRAM = Path(sys.executable).parent / "reference-app"


class Controllers:
    """Processes of the app's controller."""

    def __init__(self, api_url: str, account: Path, log: Path, command: list[str] | None = None) -> None:
        self.api_url = api_url
        self._account = account
        self._command = command or [str(PROGRAM), "run"]
        self.log = log
        self._lock = threading.Lock()
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        environment = {
            "PATH": "/usr/bin:/bin",
            "GPUAAS_API_URL": self.api_url,
            "GPUAAS_SERVICE_ACCOUNT_FILE": str(self._account),
        }
        with self.log.open("ab") as log:
            process = subprocess.Popen(self._command, env=environment, cwd="/", stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def restart(self, how: signal.Signals = signal.SIGTERM, meanwhile: Callable[[], None] = lambda: None) -> None:
        """Also from another thread, where a kill comes while the test restarts it itself."""
        with self._lock:
            self.end(how)
            meanwhile()
            self.start()

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(how)
                process.send_signal(signal.SIGCONT)
        for process in self.processes:
            process.wait(timeout=30)
        self.processes.clear()


def publish(cli: CommandLine, directory: Path, version: str) -> None:
    """A version of the app, with software that says the same version of itself.

    Its operations may take an hour: they are killed at step after step here, on a machine that may be busy."""
    bundle = directory / f"software-{version}.tar"
    subprocess.run([PROGRAM, "bundle", "--output", bundle, "--runtime-version", version], check=True)
    manifest = directory / f"manifest-{version}.yaml"
    unhurried = re.sub(r"deadline_seconds: \d+", "deadline_seconds: 3600", (APP / "manifest.yaml").read_text())
    manifest.write_text(unhurried.replace("1.1.0", version).replace("1.0.0", version))
    private, public = directory / "key.pem", directory / "key.pub"
    if not private.exists():
        key = signing_key()
        private.write_text(key.private)
        public.write_text(key.public)
        cli.run("trusted-key", "add", f"builds-{secrets.token_hex(4)}", str(public), "--app", SLUG)
    cli.run("app", "publish", str(manifest), "--artifact", f"software={bundle}", "--sign-key", str(private))
    if all(each["app_slug"] != SLUG for each in cli.json("entitlement", "list")):
        cli.run("entitlement", "grant", "acme", SLUG)


@contextmanager
def controllers(
    stack: Stack, account: Path, directory: Path, command: list[str] | None = None
) -> Iterator[Controllers]:
    made = Controllers(stack.settings.api_url, account, directory / "controller.log", command)
    try:
        yield made
    except BaseException:
        print(f"the controllers said:\n{made.log.read_text()[-8_000:] if made.log.exists() else 'nothing'}")
        raise
    finally:
        made.end()
