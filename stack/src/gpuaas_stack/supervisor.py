"""The daemon that keeps services running: starts them in order, restarts what dies with growing pauses, and
stops everything in reverse order when it is told to end. Its parent is a guard, which starts it again when it is
killed.

One thread only: a parent-death signal is sent when the *thread* that made the child ends."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from gpuaas_contract.backoff import Backoff
from gpuaas_stack.logs import LogLimits, trim
from gpuaas_stack.processes import ProcessId, end, identify
from gpuaas_stack.service import Service, ServiceState, read_states
from gpuaas_stack.users import run_as

LOCK_NAME, GUARD_NAME = "supervisor.lock", "guard.lock"
LOG_LIMITS_NAME = "log-limits"
FIRST_PAUSE, STEADY_AFTER = 0.5, 60.0
LONGEST_PAUSE = 30.0
Phase = Literal["starting", "ready", "backing-off", "stopped"]


@dataclass
class Child:
    service: Service
    fingerprint: str
    popen: subprocess.Popen[bytes] | None = None
    process: ProcessId | None = None
    phase: Phase = "backing-off"
    starts: int = 0
    started_at: float = 0.0
    start_at: float = 0.0
    failures: int = 0
    """In a row, without a steady time between them."""
    last_exit: str = ""
    written: str = ""

    def state(self) -> ServiceState:
        return ServiceState(
            name=self.service.name,
            phase=self.phase,
            process=self.process,
            starts=self.starts,
            last_exit=self.last_exit,
            fingerprint=self.fingerprint,
            order=self.service.order,
            stop_signal=self.service.stop_signal,
        )


class Supervisor:
    def __init__(self, state_dir: Path) -> None:
        self.services_dir = state_dir / "services"
        self.run_dir = state_dir / "run"
        self.logs_dir = state_dir / "logs"
        self.children: dict[str, Child] = {}
        self.stopping = False
        self._wake_in, self._wake_out = socket.socketpair()

    def run(self) -> None:
        while not self.stopping:
            self._read_wishes()
            self._tend_children()
            self._trim_logs()
            busy = any(child.phase != "ready" for child in self.children.values())
            self._sleep(0.05 if busy else 2.0)
        for child in self._ordered(reverse=True):
            self._stop(child)

    # -- wishes ---------------------------------------------------------------------------------------

    def _read_wishes(self) -> None:
        wanted: dict[str, tuple[Service, str]] = {}
        for path in self.services_dir.glob("*.json"):
            try:
                text = path.read_text()
            except FileNotFoundError:
                continue
            wanted[path.stem] = (Service.from_json(text), hashlib.sha256(text.encode()).hexdigest())
        for child in self._ordered(reverse=True):
            wish = wanted.get(child.service.name)
            if wish is None or wish[1] != child.fingerprint:
                self._stop(child)
                del self.children[child.service.name]
        for name, (service, fingerprint) in wanted.items():
            if name not in self.children:
                self.children[name] = Child(service, fingerprint)

    def _ordered(self, *, reverse: bool = False) -> list[Child]:
        return sorted(
            self.children.values(), key=lambda child: (child.service.order, child.service.name), reverse=reverse
        )

    # -- children -------------------------------------------------------------------------------------

    def _tend_children(self) -> None:
        now = time.monotonic()
        for child in self._ordered():
            if child.popen is not None and _has_ended(child.popen.pid):
                self._collect(child, now)
            if child.popen is None and now >= child.start_at:
                self._start(child)
            elif child.phase == "starting" and _is_ready(child.service):
                child.phase = "ready"
            if child.phase == "ready" and now - child.started_at > STEADY_AFTER:
                child.failures = 0
            self._write(child)

    def _start(self, child: Child) -> None:
        service = child.service
        environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
        environment |= {"LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        with self._log(service.name) as log:
            child.popen = subprocess.Popen(
                run_as(service.user, service.argv, death_signal=service.stop_signal),
                env=environment | service.env,
                cwd=service.cwd,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        child.process = identify(child.popen.pid)
        child.phase, child.started_at = "starting", time.monotonic()
        child.starts += 1
        self._write(child)

    def _collect(self, child: Child, now: float) -> None:
        assert child.popen is not None
        # The dead leader is still unreaped here, so its group id cannot belong to anybody else.
        _kill_group(child.popen.pid)
        code = child.popen.wait()
        child.last_exit = _ending(code)
        child.failures += 1
        # Its services do not start in step with anybody: no jitter.
        backoff = Backoff(first_delay=FIRST_PAUSE, longest_delay=child.service.longest_pause, jitter=0)
        pause = backoff.delay(child.failures)
        self._note(child, f"ended with {child.last_exit}; next start in {pause:.1f} s")
        child.popen, child.process, child.phase = None, None, "backing-off"
        child.start_at = now + pause

    def _stop(self, child: Child) -> None:
        popen = child.popen
        if popen is not None:
            # Not by popen, which would reap one that has just died: it is looked at and waited for below.
            os.kill(popen.pid, signal.Signals[f"SIG{child.service.stop_signal}"])
            deadline = time.monotonic() + child.service.stop_timeout
            while not _has_ended(popen.pid) and time.monotonic() < deadline:
                time.sleep(0.02)
            _kill_group(popen.pid)
            popen.wait()
        child.popen, child.process, child.phase = None, None, "stopped"
        (self.run_dir / f"{child.service.name}.json").unlink(missing_ok=True)

    def _write(self, child: Child) -> None:
        text = child.state().to_json()
        if text == child.written:
            return
        path = self.run_dir / f"{child.service.name}.json"
        temporary = path.with_suffix(".new")
        temporary.write_text(text)
        temporary.rename(path)
        child.written = text

    # -- logs and signals -----------------------------------------------------------------------------

    def _log(self, name: str) -> IO[bytes]:
        return (self.logs_dir / f"{name}.log").open("ab")

    def _note(self, child: Child, message: str) -> None:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        with self._log(child.service.name) as log:
            log.write(f"{stamp} supervisor: {child.service.name} {message}\n".encode())

    def _trim_logs(self) -> None:
        limits = LogLimits.read(self.services_dir / LOG_LIMITS_NAME)
        if limits is not None:
            trim(limits.logs(self.logs_dir), limits.total_bytes)

    def listen_for_signals(self) -> None:
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        signal.set_wakeup_fd(self._wake_out.fileno())
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_end)
        for number in (signal.SIGCHLD, signal.SIGHUP):
            signal.signal(number, lambda *_: None)

    def _on_end(self, *_: object) -> None:
        self.stopping = True

    def _sleep(self, seconds: float) -> None:
        ready, _, _ = select.select([self._wake_in], [], [], seconds)
        if ready:
            self._wake_in.recv(4096)


def _is_ready(service: Service) -> bool:
    try:
        return service.ready.check()
    except subprocess.TimeoutExpired:
        return False


def _has_ended(pid: int) -> bool:
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _ending(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit status {code}"


def _kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def end_leftovers(run_dir: Path) -> list[str]:
    """End services that a killed supervisor has left, by recorded pid and start time."""
    ended = []
    for state in reversed(read_states(run_dir)):
        if state.process is not None and state.running:
            end(state.process, signal.Signals[f"SIG{state.stop_signal}"])
            ended.append(state.name)
        (run_dir / f"{state.name}.json").unlink(missing_ok=True)
    return ended


def _take_lock(path: Path, timeout: float = 1.0) -> int | None:
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + timeout
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            # Somebody who only looks holds it for a moment; a supervisor holds it for good.
            if time.monotonic() > deadline:
                return None
            time.sleep(0.02)
        else:
            return lock


def _hold(lock: int) -> None:
    """Say in a lock who holds it."""
    me = identify(os.getpid())
    assert me is not None
    os.pwrite(lock, json.dumps(me.to_json()).encode(), 0)


def serve(state_dir: Path) -> int:
    """Run the daemon; return soon if there is one already (the lock dies with its holder)."""
    lock = _take_lock(state_dir / "run" / LOCK_NAME)
    if lock is None:
        return 0
    os.ftruncate(lock, 0)
    end_leftovers(state_dir / "run")
    supervisor = Supervisor(state_dir)
    supervisor.listen_for_signals()
    # Written last: whoever reads it may send signals at once.
    _hold(lock)
    supervisor.run()
    os.ftruncate(lock, 0)
    return 0


def guard(state_dir: Path) -> int:
    """Run the daemon in a process of its own, and start it again, with the same services, when it is killed."""
    lock = _take_lock(state_dir / "run" / GUARD_NAME)
    if lock is None:
        return 0
    os.ftruncate(lock, 0)
    told_to_end, child, failures = False, 0, 0

    def pass_on(*_: object) -> None:
        nonlocal told_to_end
        told_to_end = True
        if child:
            os.kill(child, signal.SIGTERM)

    signal.signal(signal.SIGTERM, pass_on)
    _hold(lock)
    while not told_to_end:
        started_at = time.monotonic()
        # Held back until it is known which child to pass it on to.
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])
        child = os.fork()
        if child == 0:
            # Not its lock: the supervisor outlives its guard.
            os.close(lock)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
            return serve(state_dir)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGTERM])
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        child = 0
        if code == 0 or told_to_end:
            break
        failures = 1 if time.monotonic() - started_at > STEADY_AFTER else failures + 1
        pause = Backoff(first_delay=FIRST_PAUSE, longest_delay=LONGEST_PAUSE, jitter=0).delay(failures)
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        print(f"{stamp} guard: the supervisor ended with {_ending(code)}; next start in {pause:.1f} s", flush=True)
        # A signal does not cut the pause short by itself.
        until = time.monotonic() + pause
        while not told_to_end and time.monotonic() < until:
            time.sleep(0.05)
    return 0


def daemonise() -> None:
    """Leave the terminal and the caller behind: own session, and init as the parent."""
    if os.fork():
        os._exit(0)
    os.setsid()
    if os.fork():
        os._exit(0)
    os.chdir("/")
    os.umask(0o022)


if __name__ == "__main__":
    daemonise()
    sys.exit(guard(Path(sys.argv[1])))
