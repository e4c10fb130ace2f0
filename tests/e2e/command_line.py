"""The `gpuaas` program, used as a person or a script uses it.

Calls that the test waits for run warm (see warm_command_line); `start` and `paste` start the installed program."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from tests.e2e.warm_command_line import Warm

GPUAAS = Path(sys.executable).parent / "gpuaas"
_warm = Warm()


class CommandLine:
    def __init__(self, home: Path, environment: Mapping[str, str] | None = None) -> None:
        path = f"{GPUAAS.parent}:{os.environ['PATH']}"
        self.environment = {"HOME": str(home), "PATH": path, "LC_ALL": "C.UTF-8", **(environment or {})}
        self.listeners: list[Callable[[str, subprocess.CompletedProcess[str]], None]] = []

    def call(self, *words: str, stdin: str = "", timeout: float = 300) -> subprocess.CompletedProcess[str]:
        done = _warm.run(GPUAAS, list(words), stdin=stdin, env=self.environment, timeout=timeout)
        self._tell(f"gpuaas {' '.join(words)}", done)
        return done

    def call_installed(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run the installed program."""
        return subprocess.run(
            [str(GPUAAS), *words], input=stdin, env=self.environment, capture_output=True, text=True, check=False
        )

    def _tell(self, line: str, done: subprocess.CompletedProcess[str]) -> None:
        for listen in self.listeners:
            listen(line, done)

    def run(self, *words: str, stdin: str = "", timeout: float = 300) -> str:
        """Run a command and return its standard output; fail the test with all output if it fails."""
        done = self.call(*words, stdin=stdin, timeout=timeout)
        assert done.returncode == 0, f"gpuaas {' '.join(words)}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def json(self, *words: str, timeout: float = 300) -> Any:
        return json.loads(self.run(*words, "-o", "json", timeout=timeout))

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(GPUAAS), *words],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ssh(self, machine: str, *words: str) -> str:
        return self.run("ssh", machine, "--", *words)

    def on(self, machine: str, *words: str) -> str:
        """Run a command on a machine over this host's route, for tests that are not about the streams of platform and
        agent."""
        return self.run("ssh", machine, "--direct", "--", *words)

    def paste(self, line: str, timeout: float = 120) -> str:
        """Run a line that was shown to a person, in a shell without a terminal."""
        done = subprocess.run(
            ["bash", "-c", line],
            stdin=subprocess.DEVNULL,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        self._tell(line, done)
        assert done.returncode == 0, f"{line}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout
