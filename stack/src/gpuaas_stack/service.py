"""A service, and the two files that describe it: the wish (services/NAME.json) that the stack writes, and
the state (run/NAME.json) that the supervisor writes. Files, so that either side may die and look again."""

from __future__ import annotations

import json
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from gpuaas_stack.processes import ProcessId, alive
from gpuaas_stack.users import write_private


@dataclass(frozen=True)
class Ready:
    """The check that a service answers. `target` is host:port, an address or an argument list."""

    kind: Literal["none", "tcp", "http", "exec"] = "none"
    target: str | list[str] = ""

    def check(self) -> bool:
        match self.kind:
            case "none":
                return True
            case "tcp":
                host, _, port = str(self.target).rpartition(":")
                return _connects(host, int(port))
            case "http":
                return _answers(str(self.target))
            case "exec":
                done = subprocess.run(list(self.target), check=False, capture_output=True, timeout=5)
                return done.returncode == 0


def _connects(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=1):
            return True
    except OSError:
        return False


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2, context=_any_certificate()):  # noqa: S310 - our own service
            return True
    except urllib.error.HTTPError as error:
        return error.code < 500
    except (OSError, ValueError):
        return False


def _any_certificate() -> ssl.SSLContext:
    """Only whether our own process answers is asked here. Who starts it checks its certificate, and so do clients."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context


@dataclass(frozen=True)
class Service:
    name: str
    argv: list[str]
    order: int
    user: str = "root"
    env: dict[str, str] = field(default_factory=dict)
    cwd: str = "/"
    ready: Ready = field(default_factory=Ready)
    stop_signal: str = "TERM"
    stop_timeout: float = 20.0
    longest_pause: float = 30.0
    """Before it is started again, where it keeps ending."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Service:
        value = json.loads(text)
        value["ready"] = Ready(**value["ready"])
        return cls(**value)


@dataclass(frozen=True)
class ServiceState:
    name: str
    phase: Literal["starting", "ready", "backing-off", "stopped"]
    process: ProcessId | None = None
    starts: int = 0
    last_exit: str = ""
    fingerprint: str = ""  # of the wish this state belongs to
    order: int = 0
    stop_signal: str = "TERM"

    def to_json(self) -> str:
        value: dict[str, Any] = asdict(self)
        return json.dumps(value, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> ServiceState:
        value = json.loads(text)
        if value["process"] is not None:
            value["process"] = ProcessId.from_json(value["process"])
        return cls(**value)

    @property
    def running(self) -> bool:
        return self.process is not None and alive(self.process)


def write_service(directory: Path, service: Service) -> None:
    # The environment of a service may hold a secret.
    write_private(directory / f"{service.name}.json", service.to_json())


def read_state(run_dir: Path, name: str) -> ServiceState | None:
    try:
        return ServiceState.from_json((run_dir / f"{name}.json").read_text())
    except FileNotFoundError:
        return None


def read_states(run_dir: Path) -> list[ServiceState]:
    names = sorted(path.stem for path in run_dir.glob("*.json"))
    states = [state for name in names if (state := read_state(run_dir, name))]
    return sorted(states, key=lambda state: (state.order, state.name))
