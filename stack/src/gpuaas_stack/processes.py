"""Processes by identity. A process id alone is reused by the kernel; with its start time and the boot it
belongs to, it names one process for ever, so that nothing else is ever ended by mistake."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gpuaas_stack import users
from gpuaas_stack.errors import StackError


@dataclass(frozen=True)
class ProcessId:
    pid: int
    started: int  # clock ticks since boot, field 22 of /proc/PID/stat
    boot: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> ProcessId:
        return cls(int(value["pid"]), int(value["started"]), str(value["boot"]))


def boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _stat(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name is in brackets and may hold anything, so fields are counted after the last bracket.
    return text.rpartition(")")[2].split()


def identify(pid: int) -> ProcessId | None:
    """The identity of a live process, or None if there is none (a zombie has ended too)."""
    fields = _stat(pid)
    if fields is None or fields[0] in "ZX":
        return None
    return ProcessId(pid, int(fields[19]), boot_id())


def alive(process: ProcessId) -> bool:
    return identify(process.pid) == process


def wait_gone(process: ProcessId, timeout: float) -> bool:
    deadline = time.monotonic() + timeout
    while alive(process):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def _send(process: ProcessId, number: signal.Signals) -> None:
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        # Looked at again with the handle open: from here on the signal cannot reach another process.
        if alive(process):
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)


def start(argv: list[str], env: dict[str, str], record: Path, log: Path) -> None:
    """Start a daemon that outlives us, and record which process it is."""
    users.ensure_dir(log.parent, mode=0o700)
    with log.open("ab") as file:
        # Detached through a shell that ends at once, so that init is the parent and reaps it.
        script = 'setsid "$@" </dev/null >&2 & echo $!'
        words = ["sh", "-c", script, "sh", *argv]
        done = subprocess.run(words, check=True, env=env, cwd="/", stdout=subprocess.PIPE, stderr=file, text=True)
    process = identify(int(done.stdout))
    if process is None:
        raise StackError(f"cannot start {record.stem}: it ended at once, see {log}")
    users.write_private(record, json.dumps(process.to_json()))


def recorded(record: Path) -> ProcessId | None:
    try:
        return ProcessId.from_json(json.loads(record.read_text()))
    except FileNotFoundError:
        return None


def end(process: ProcessId, number: signal.Signals = signal.SIGTERM, timeout: float = 20.0) -> None:
    """Ask a process to end, and kill it after the timeout."""
    _send(process, number)
    if not wait_gone(process, timeout):
        _send(process, signal.SIGKILL)
        wait_gone(process, 10.0)
