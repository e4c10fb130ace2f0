"""The scripts that go in front of an app's own ones, and how their answers are read. Nothing here talks."""

import re
import shlex
from dataclasses import dataclass
from importlib.resources import files

from gpuaas_contract.operations import Claim
from gpuaas_sdk.errors import MachineFencedError, ProtocolError
from gpuaas_sdk.machines.base import CommandError, CommandResult

OUTPUT_LIMIT = 256 * 1024
"""The end of a step's output; the rest stays on the machine until the step is over."""
STEP_NAME_LIMIT = 100
TERMINATED = 124
"""The exit status that `timeout` has made customary."""


def _load(name: str) -> str:
    text = (files(__package__) / name).read_text()
    # Comments are for the reader here, not for the wire.
    return "\n".join(line for line in text.splitlines() if line and not line.lstrip().startswith("#")) + "\n"


_FENCE = _load("fence.sh")
_STEP = _FENCE + _load("step.sh")
_FILE = _FENCE + _load("file.sh")

# The script is read to its end before its first line runs, and never appears in an argument list.
_READ = """
export LC_ALL=C.UTF-8 GPUAAS_CORRELATION_ID=$1
script=$(head -c "$2"; echo x)
script=${script%x}
if (($(printf %s "$script" | wc -c) != $2)); then echo "received less than $2 bytes" >&2; exit 75; fi
set --
exec </dev/null
logger -t gpuaas "reads ($GPUAAS_CORRELATION_ID)" || true
set -euo pipefail
eval "$script"
"""


@dataclass(frozen=True, slots=True)
class Fence:
    """Under which right a machine is changed."""

    instance: str
    scope: str
    operation: str
    token: int
    correlation: str

    @classmethod
    def of(cls, claim: Claim) -> "Fence":
        operation = claim.operation
        member, instance = operation.member_id, operation.instance_id
        if instance is None:
            raise ValueError(f"{operation.kind} only looks: it has no right to change a machine")
        scope = instance if member is None else f"{instance}.{member}"
        return cls(instance, scope, operation.id, claim.fencing_token, operation.correlation_id)

    def arguments(self, length: int) -> list[str]:
        return [self.instance, self.scope, self.operation, str(self.token), self.correlation, str(length)]


def unit_name(operation_id: str, step: str) -> str:
    """A valid name for a systemd unit: lower case, and only what needs no escaping."""
    word = re.sub(r"[^a-z0-9_-]+", "-", step.lower()).strip("-")[:STEP_NAME_LIMIT]
    return f"gpuaas-{operation_id.lower()}-{word or 'step'}"


def _bash(program: str, arguments: list[str]) -> str:
    return shlex.join(["exec", "/bin/bash", "-c", program, "gpuaas", *arguments])


def read_command(correlation_id: str, script: bytes, timeout: float) -> str:
    limit = str(max(1, round(timeout)))
    bash = ["/bin/bash", "-c", _READ, "gpuaas", correlation_id, str(len(script))]
    return shlex.join(["exec", "timeout", "--kill-after=5", limit, *bash])


def step_command(fence: Fence, step: str, script: bytes, *, call: str, timeout: float) -> str:
    unit = unit_name(fence.operation, step)
    title = f"{unit} ({fence.correlation}, token {fence.token})"
    arguments = [unit, call, str(max(1, round(timeout))), str(OUTPUT_LIMIT), title]
    return _bash(_STEP, [*fence.arguments(len(script)), *arguments])


def file_command(fence: Fence, path: str, length: int, *, mode: int, owner: str, group: str) -> str:
    if not path.startswith("/") or path.endswith("/"):
        raise ValueError(f"not the absolute path of a file: {path!r}")
    return _bash(_FILE, [*fence.arguments(length), path, f"{mode:o}", f"{owner}:{group}"])


def step_result(what: str, exit_status: int, stdout: bytes, stderr: bytes) -> CommandResult:
    """Return the answer of the script itself; raise where it did not run, or was refused."""
    line, body = _split(what, exit_status, stdout, stderr)
    answer = re.fullmatch(r"gpuaas-step (terminated|\d{1,3}) (\d{1,12})", line)
    if answer is None:
        raise ProtocolError(f"cannot {what}: the machine answered {line[:40]!r}")
    outcome, size = answer[1], int(answer[2])
    out, err = body[:size].decode(errors="replace"), body[size:].decode(errors="replace")
    if outcome == "terminated":
        err += "\nthe step was ended from outside: it ran into its time limit, or a successor stopped it"
        return CommandResult(TERMINATED, out, err)
    return CommandResult(int(outcome), out, err)


def check_file_written(what: str, exit_status: int, stdout: bytes, stderr: bytes) -> None:
    line, _ = _split(what, exit_status, stdout, stderr)
    if line.split() != ["gpuaas-file"]:
        raise ProtocolError(f"cannot {what}: the machine answered {line[:40]!r}")


def _split(what: str, exit_status: int, stdout: bytes, stderr: bytes) -> tuple[str, bytes]:
    """The first line says how it went; the rest is the script's own output."""
    if exit_status != 0:
        said = CommandResult(exit_status, stdout.decode(errors="replace"), stderr.decode(errors="replace"))
        raise CommandError(what, said)
    first, _, body = stdout.partition(b"\n")
    line = first.decode(errors="replace")
    if line.split()[:1] == ["gpuaas-fenced"]:
        token = line.removeprefix("gpuaas-fenced").strip()
        raise MachineFencedError(f"cannot {what}: the machine has seen the newer fencing token {token}")
    return line, body
