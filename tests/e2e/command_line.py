"""The `gpuaas` program, used as a person or a script uses it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

GPUAAS = Path(sys.executable).parent / "gpuaas"


class CommandLine:
    def __init__(self, home: Path) -> None:
        self._environment = {"HOME": str(home), "PATH": f"{GPUAAS.parent}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8"}
        self.listeners: list[Callable[[str, subprocess.CompletedProcess[str]], None]] = []

    def call(self, *words: str, stdin: str = "", timeout: float = 300) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [str(GPUAAS), *words],
            input=stdin,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        self._tell(f"gpuaas {' '.join(words)}", done)
        return done

    def _tell(self, line: str, done: subprocess.CompletedProcess[str]) -> None:
        for listen in self.listeners:
            listen(line, done)

    def run(self, *words: str, stdin: str = "", timeout: float = 300) -> str:
        """The command's standard output; anything but success is the test's failure, with all that was said."""
        done = self.call(*words, stdin=stdin, timeout=timeout)
        assert done.returncode == 0, f"gpuaas {' '.join(words)}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def json(self, *words: str, timeout: float = 300) -> Any:
        return json.loads(self.run(*words, "-o", "json", timeout=timeout))

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [str(GPUAAS), *words],
            env=self._environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def ssh(self, machine: str, *words: str) -> str:
        return self.run("ssh", machine, "--", *words)

    def paste(self, line: str, timeout: float = 120) -> str:
        """A line that was shown to a person, in a shell without a terminal."""
        done = subprocess.run(
            ["bash", "-c", line],
            stdin=subprocess.DEVNULL,
            env=self._environment,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        self._tell(line, done)
        assert done.returncode == 0, f"{line}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout
