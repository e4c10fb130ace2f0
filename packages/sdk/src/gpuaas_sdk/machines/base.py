"""The port through which app code sees a machine. The real one goes over SSH (`ssh.py`)."""

from dataclasses import dataclass
from typing import Protocol

EVIDENCE_LIMIT = 2_000
COPIED_ARTIFACTS = "/var/lib/gpuaas/artifacts"
"""Where artifacts lie on a machine that has no agent of the platform."""


class MachineUnreachableError(Exception):
    """The machine did not answer. Nothing is known about its state: never take this for a "no"."""


class NotObservableError(MachineUnreachableError):
    """The platform has no observer on the machine, as on external ones: only operations get there."""


@dataclass(frozen=True, slots=True)
class CommandResult:
    exit_status: int
    stdout: str
    stderr: str

    @property
    def ok(self) -> bool:
        return self.exit_status == 0

    @property
    def values(self) -> dict[str, str]:
        """The lines `KEY=VALUE` of its output; the last one where a key is there twice."""
        return {key: values[-1] for key, values in parse_values(self.stdout).items()}


def parse_values(text: str) -> dict[str, list[str]]:
    """The lines `KEY=VALUE` by their key, in their order. Other lines are left out."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, separator, value = line.partition("=")
        if separator:
            found.setdefault(key, []).append(value)
    return found


class CommandError(Exception):
    """A command ran and answered with a failure; the message carries the end of what it said."""

    def __init__(self, what: str, result: CommandResult) -> None:
        self.what = what
        self.result = result
        said = (result.stderr.strip() or result.stdout.strip())[-EVIDENCE_LIMIT:]
        super().__init__(f"cannot {what}: exit status {result.exit_status}: {said}")


class ObservedMachine(Protocol):
    """One machine, to be looked at. Scripts are bash with `set -euo pipefail`; an observer is not root, and can read
    what everybody on the machine can."""

    @property
    def allocation_id(self) -> str: ...

    @property
    def hostname(self) -> str: ...

    @property
    def address(self) -> str: ...

    async def read(self, script: str, *, timeout: float = 30) -> CommandResult:
        """Run a script that changes nothing and return its answer, whatever its exit status."""
        ...


class Machine(ObservedMachine, Protocol):
    """One machine of an operation. Scripts are run as root."""

    async def run_step(self, step: str, script: str, *, timeout: float = 300) -> CommandResult:
        """Run a script that changes the machine, as a transient systemd unit named by operation and step.

        The unit outlives a lost connection. A successor that runs the same step first waits for the old
        unit to end, so a script must be idempotent. Raises CommandError when the script fails.
        """
        ...

    async def write_file(
        self, path: str, content: str | bytes, *, mode: int = 0o644, owner: str = "root", group: str = "root"
    ) -> None:
        """Replace a file atomically; parent directories must exist."""
        ...

    async def deliver(self, digest: str) -> str:
        """Bring the artifact with this digest (`sha256:…`) to the machine; return its read-only path.

        On a machine without an agent it is a copy below COPIED_ARTIFACTS, which the app removes when it leaves."""
        ...
