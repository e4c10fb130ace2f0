"""The Slurm app's controller, for which every step on a machine runs twice, and chosen ones fail half-way at first.

STUMBLES names them (`deploy:start-munge add:install-packages`, or `all`). Such a failure is that of the operation, as
it would be without this; at the next attempt the step is let through. What has failed is noted in $HOME/stumbled, so
that it is known also after a kill."""

import os
import random
import subprocess
from pathlib import Path

from gpuaas_sdk import CommandError, CommandResult
from gpuaas_sdk.machines.ssh import SshMachine
from slurm_app import controller

CHOSEN = os.environ["STUMBLES"].split()
STUMBLED = Path(os.environ["HOME"]) / "stumbled"
_run_step = SshMachine.run_step


async def stumble(self: SshMachine, step: str, script: str, *, timeout: float = 300) -> CommandResult:
    name = f"{self.claim.operation.kind}:{step}"
    if (name in CHOSEN or CHOSEN == ["all"]) and name not in _stumbled():
        with STUMBLED.open("a") as notes:
            notes.write(f"{name}\n")
        await _run_step(self, step, beginning(script, name), timeout=timeout)
        raise CommandError(f"run step {step} on {self.hostname}", CommandResult(1, "", "it was cut off"))
    await _run_step(self, step, script, timeout=timeout)
    return await _run_step(self, step, script, timeout=timeout)


def _stumbled() -> list[str]:
    return STUMBLED.read_text().split() if STUMBLED.exists() else []


def beginning(script: str, name: str) -> str:
    """Cut a script at a line where bash can still parse it: not inside an `if` or a here-document."""
    lines = script.splitlines()
    end = random.Random(name).randint(len(lines) // 2, len(lines) - 1)
    while not _readable("\n".join(lines[:end])):
        end -= 1
    return "\n".join([*lines[:end], "true"])


def _readable(script: str) -> bool:
    # A file without its end is only a warning.
    read = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True, check=False)
    return read.returncode == 0 and not read.stderr


if __name__ == "__main__":
    SshMachine.run_step = stumble  # type: ignore[method-assign]
    controller.run()
