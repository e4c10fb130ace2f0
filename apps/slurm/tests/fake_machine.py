"""A machine that records what it is asked; its answers are given beforehand. Only for "given facts, expect"."""

from dataclasses import dataclass, field

from gpuaas_sdk import CommandResult, MachineFacts
from gpuaas_sdk.machines.facts import parse_facts

FACTS = """\
hostname=node-1
os=debian
os_version=12
architecture=x86_64
cpus=2
memory_mib=2048
disk_free_mib=4000
gpu=/dev/nvidia0
gpu=/dev/nvidia1
uid_map=0:100000
cgroup=v1
init=systemd
clock=1700000000
"""
SLURMD_C = "NodeName=node-1 CPUs=2 Boards=1 SocketsPerBoard=1 CoresPerSocket=2 ThreadsPerCore=1 RealMemory=24105\n"


@dataclass
class FakeMachine:
    hostname: str = "node-1"
    address: str = "10.0.0.1"
    allocation_id: str = "alc_1"
    answers: dict[str, CommandResult] = field(default_factory=dict)
    """By a piece of the script, or by the name of the step."""
    reads: list[str] = field(default_factory=list)
    steps: list[tuple[str, str]] = field(default_factory=list)
    files: dict[str, tuple[str | bytes, int]] = field(default_factory=dict)

    def _answer(self, key: str) -> CommandResult:
        for piece, answer in self.answers.items():
            if piece in key:
                return answer
        return CommandResult(0, "", "")

    async def read(self, script: str, *, timeout: float = 30) -> CommandResult:
        self.reads.append(script)
        return self._answer(script)

    async def run_step(self, step: str, script: str, *, timeout: float = 300) -> CommandResult:
        self.steps.append((step, script))
        return self._answer(step)

    async def write_file(
        self, path: str, content: str | bytes, *, mode: int = 0o644, owner: str = "root", group: str = "root"
    ) -> None:
        self.files[path] = (content, mode)

    async def deliver(self, digest: str) -> str:
        return f"/bundles/{digest}"


def facts_of(text: str) -> MachineFacts:
    """As read by a controller whose clock says the same."""
    return parse_facts(text, 1_700_000_000, 1_700_000_000)


def said(text: str) -> CommandResult:
    return CommandResult(0, text, "")
