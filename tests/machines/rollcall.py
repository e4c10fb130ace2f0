"""The reference app as its team would run it: its program, its service account, and an otherwise empty environment."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpuaas_stack.stack import Stack
from tests.e2e.command_line import CommandLine
from tests.support.artifacts import signing_key

APP = Path(__file__).parents[2] / "apps" / "reference"
SLUG = "rollcall"
PROGRAM = Path(sys.executable).parent / "reference-app"
SMALL = ["--cpus", "1", "--memory-mib", "512", "--disk-gib", "2"]


class Controllers:
    """Processes of the app's controller."""

    def __init__(self, api_url: str, account: Path, log: Path) -> None:
        self._environment = {
            "PATH": "/usr/bin:/bin",
            "GPUAAS_API_URL": api_url,
            "GPUAAS_SERVICE_ACCOUNT_FILE": str(account),
        }
        self.log = log
        self.processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            process = subprocess.Popen([PROGRAM, "run"], env=self._environment, cwd="/", stdout=log, stderr=log)
        self.processes.append(process)
        return process

    def end(self, how: signal.Signals = signal.SIGTERM) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.send_signal(how)
                process.send_signal(signal.SIGCONT)
        for process in self.processes:
            process.wait(timeout=30)
        self.processes.clear()


def publish(cli: CommandLine, directory: Path, version: str = "1.0.0") -> None:
    """A version of the app, with software that says the same version of itself."""
    bundle = directory / f"software-{version}.tar"
    subprocess.run([PROGRAM, "bundle", "--output", bundle, "--runtime-version", version], check=True)
    manifest = directory / f"manifest-{version}.yaml"
    manifest.write_text((APP / "manifest.yaml").read_text().replace("1.0.0", version))
    private, public = directory / "key.pem", directory / "key.pub"
    if not private.exists():
        key = signing_key()
        private.write_text(key.private)
        public.write_text(key.public)
        cli.run("trusted-key", "add", "builds", str(public), "--app", SLUG)
    cli.run("app", "publish", str(manifest), "--artifact", f"software={bundle}", "--sign-key", str(private))
    if version == "1.0.0":
        cli.run("entitlement", "grant", "acme", SLUG)


@contextmanager
def controllers(stack: Stack, account: Path, directory: Path) -> Iterator[Controllers]:
    made = Controllers(stack.settings.api_url, account, directory / "controller.log")
    try:
        yield made
    except BaseException:
        print(f"the controllers said:\n{made.log.read_text()[-8_000:] if made.log.exists() else 'nothing'}")
        raise
    finally:
        made.end()


def roll(cli: CommandLine, machine: str) -> dict[str, Any]:
    said: dict[str, Any] = json.loads(cli.ssh(machine, "sudo", "/opt/rollcall/rollcall", "ask", "GET", "/health"))
    return said
