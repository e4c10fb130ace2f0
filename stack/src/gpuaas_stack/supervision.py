"""The supervisor's client: starts and stops it, asks for services and waits for them."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

from gpuaas_stack.errors import StackError
from gpuaas_stack.logs import LogLimits
from gpuaas_stack.processes import ProcessId, alive, end, wait_gone
from gpuaas_stack.service import Service, ServiceState, read_state, read_states, write_service
from gpuaas_stack.supervisor import GUARD_NAME, LOCK_NAME, LOG_LIMITS_NAME, end_leftovers
from gpuaas_stack.users import ensure_dir

# A service that ended this often before it was ready will not become ready by waiting.
HOPELESS_AFTER = 4


class Supervision:
    def __init__(self, state_dir: Path, longest_pause: float = 30.0, log_limits: LogLimits | None = None) -> None:
        self.state_dir = state_dir
        self.longest_pause = longest_pause
        self.log_limits = log_limits
        self.run_dir = state_dir / "run"
        self.services_dir = state_dir / "services"
        self.logs_dir = state_dir / "logs"

    def running(self) -> ProcessId | None:
        """The supervisor that holds the lock. A file left by a killed one holds no lock and means nothing."""
        return self._holder(LOCK_NAME)

    def guard(self) -> ProcessId | None:
        """The process that starts the supervisor again when it is killed."""
        return self._holder(GUARD_NAME)

    def settled(self, timeout: float = 60.0) -> ProcessId | None:
        """The supervisor, waited for where it was killed and its guard is about to start it again."""
        deadline = time.monotonic() + timeout
        while (found := self.running()) is None and self.guard() and time.monotonic() < deadline:
            time.sleep(0.02)
        return found

    def _holder(self, name: str) -> ProcessId | None:
        try:
            descriptor = os.open(self.run_dir / name, os.O_RDONLY)
        except FileNotFoundError:
            return None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = os.pread(descriptor, 4096, 0)
            return ProcessId.from_json(json.loads(text)) if text else None
        else:
            return None
        finally:
            os.close(descriptor)

    def ensure_running(self) -> bool:
        """Start the supervisor unless it runs. True if it was started (with no wishes yet)."""
        ensure_dir(self.run_dir, mode=0o755)
        ensure_dir(self.services_dir, mode=0o700)
        ensure_dir(self.logs_dir, mode=0o700)
        if self.log_limits is not None:
            self.log_limits.write(self.services_dir / LOG_LIMITS_NAME)
        if self.settled():
            return False
        if guard := self.guard():
            # It tries for a while already, perhaps because of a wish: they are made anew.
            end(guard)
        for wish in self.services_dir.glob("*.json"):
            wish.unlink()
        with (self.logs_dir / "supervisor.log").open("ab") as log:
            subprocess.run(
                [sys.executable, "-m", "gpuaas_stack.supervisor", str(self.state_dir)],
                check=True,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + 60
        while not self.running():
            if time.monotonic() > deadline:
                raise StackError(f"cannot start the supervisor: see {self.logs_dir}/supervisor.log")
            time.sleep(0.02)
        return True

    def ensure_stopped(self) -> None:
        """End what a killed supervisor left, so that ports and data directories are free."""
        if self.run_dir.exists():
            end_leftovers(self.run_dir)

    def ensure_service(self, service: Service) -> None:
        """Ask for a service; one whose description is unchanged is left alone."""
        service = replace(service, longest_pause=self.longest_pause)
        path = self.services_dir / f"{service.name}.json"
        if not path.exists() or path.read_text() != service.to_json():
            write_service(self.services_dir, service)
        self._wake()

    def remove_service(self, name: str, timeout: float = 30.0) -> None:
        (self.services_dir / f"{name}.json").unlink(missing_ok=True)
        self._wake()
        deadline = time.monotonic() + timeout
        while (self.run_dir / f"{name}.json").exists() and self.settled():
            if time.monotonic() > deadline:
                raise StackError(f"cannot stop {name} within {timeout:.0f} s")
            time.sleep(0.02)

    def wait_ready(self, name: str, timeout: float = 60.0) -> ServiceState:
        text = (self.services_dir / f"{name}.json").read_bytes()
        wanted = hashlib.sha256(text).hexdigest()
        deadline = time.monotonic() + timeout
        first_starts: int | None = None
        while True:
            state = read_state(self.run_dir, name)
            if state and state.fingerprint == wanted:
                if state.phase == "ready" and state.running:
                    return state
                first_starts = state.starts if first_starts is None else first_starts
                if state.starts - first_starts >= HOPELESS_AFTER:
                    raise StackError(f"cannot start {name}: it keeps ending ({state.last_exit}). {self.tail(name)}")
            if self.settled() is None:
                raise StackError(f"cannot start {name}: the supervisor has ended. {self.tail('supervisor')}")
            if time.monotonic() > deadline:
                raise StackError(f"cannot start {name}: not ready after {timeout:.0f} s. {self.tail(name)}")
            time.sleep(0.02)

    def states(self) -> list[ServiceState]:
        return read_states(self.run_dir)

    def tail(self, name: str, lines: int = 12) -> str:
        path = self.logs_dir / f"{name}.log"
        if not path.exists():
            return "It has no log."
        last = path.read_text(errors="replace").splitlines()[-lines:]
        return f"The end of {path}:\n" + "\n".join(f"  {line}" for line in last)

    def stop(self, timeout: float = 120.0) -> list[str]:
        """Stop the supervisor and all its services, also those that a killed supervisor left."""
        names = [state.name for state in reversed(self.states()) if state.running]
        # The guard passes it on, and does not start another one. One that was killed cannot.
        for find in (self.guard, self.running):
            process = find()
            if process is None:
                continue
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGTERM)
            if not wait_gone(process, timeout):
                raise StackError(f"cannot stop the supervisor (process {process.pid}) in {timeout:.0f} s")
        self.ensure_stopped()
        for wish in self.services_dir.glob("*.json"):
            wish.unlink()
        return names

    def _wake(self) -> None:
        supervisor = self.running()
        if supervisor and alive(supervisor):
            os.kill(supervisor.pid, signal.SIGHUP)
