"""The agent as a systemd unit, so that it is there after every boot."""

import os
import shlex
import subprocess
import sys
from importlib import resources
from pathlib import Path

from gpuaas_agent.errors import PermanentError
from gpuaas_agent.files import write_atomically

UNIT = "gpuaas-agent.service"
UNIT_PATH = Path("/etc/systemd/system") / UNIT
ENVIRONMENT_FILE = Path("/etc/gpuaas/agent.env")


def unit_text(environment_file: Path, command: str) -> str:
    template = (resources.files("gpuaas_agent") / "units" / UNIT).read_text()
    # systemd gives `%` and `$` meanings of its own in a command line.
    escaped = command.replace("%", "%%").replace("$", "$$")
    return template.replace("@ENVIRONMENT_FILE@", str(environment_file)).replace("@COMMAND@", escaped)


def install_unit(environment_file: Path, *, start: bool) -> None:
    """Write the unit and have systemd start it with every boot; with `start` also now."""
    if not Path("/run/systemd/system").exists():
        raise PermanentError("cannot install the unit: systemd does not run here; let a supervisor run the agent")
    if os.geteuid() != 0:
        raise PermanentError("cannot install the unit without root")
    if not environment_file.is_file():
        raise PermanentError(f"cannot install the unit: {environment_file} with the agent's settings is missing")
    # This very interpreter: it is the one that has the agent.
    command = f"{shlex.quote(sys.executable)} -m gpuaas_agent.main"
    write_atomically(UNIT_PATH, unit_text(environment_file.absolute(), command).encode(), mode=0o644)
    for words in (["daemon-reload"], ["enable", *(["--now"] if start else []), UNIT]):
        done = subprocess.run(["systemctl", *words], check=False, capture_output=True, text=True)
        if done.returncode != 0:
            raise PermanentError(f"cannot systemctl {' '.join(words)}: {done.stderr.strip()}")
