"""Facts that decide whether a machine can be part of a cluster, and how. Reading them changes nothing."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuaas_sdk import CommandError, Machine, MachineFacts, read_facts
from slurm_app import names
from slurm_app.errors import NotReadyError, RefusedError
from slurm_app.limits.package import PACKAGE as LIMITS
from slurm_app.slurm.roles import Role, memory_needed
from slurm_app.slurm.script import quoted

_SLURM_USER = """
if id=$(id -u slurm 2>/dev/null); then echo "uid_slurm=$id"; fi
"""

# munge refuses a credential that is older than five minutes; a tenth of that already confuses whoever reads logs.
LARGEST_SKEW_SECONDS = 30
SLURM_UID = 64030
"""Debian's own reservation: the same on every machine."""


@dataclass(frozen=True, slots=True)
class NodeShape:
    """The processors as slurmd sees them, the memory as the machine is allowed to use it."""

    cpus: int
    boards: int
    sockets_per_board: int
    cores_per_socket: int
    threads_per_core: int
    memory_mib: int
    gpus: tuple[str, ...]
    limits: bool = False
    """Whether the machine has the package of the limits; those of clusters from before it have not."""
    gpu_types: tuple[str, ...] = ()
    """One for each of the GPUs, in their order; empty where the driver does not say."""


# Left to the daemons: a job that takes all that it can get must not take slurmd's memory.
DAEMONS_MIB = {Role.WORKER: 128, Role.CONTROLLER: 700}


def memory_for_jobs(memory_mib: int, *, beside_controller: bool) -> int:
    daemons = DAEMONS_MIB[Role.WORKER] + (DAEMONS_MIB[Role.CONTROLLER] if beside_controller else 0)
    return max(memory_mib - daemons - memory_mib // 32, memory_mib // 4)


async def read_machine(machine: Machine) -> MachineFacts:
    """Read the facts, with the id of the user slurm where the machine has one."""
    return await read_facts(machine, _SLURM_USER)


def refuse_unfit(machine: Machine, facts: MachineFacts, roles: Iterable[Role]) -> None:
    """Refuse what would fail later in a way that is harder to understand."""
    if facts.init != "systemd":
        raise RefusedError("no_systemd", f"{machine.hostname} does not run systemd but {facts.init!r}")
    if (facts.os, facts.os_version) != ("debian", "12"):
        raise RefusedError(
            "unsupported_os", f"{machine.hostname} runs {facts.os} {facts.os_version}; the packages are Debian 12's"
        )
    if facts.hostname != machine.hostname:
        raise RefusedError(
            "hostname_mismatch", f"{machine.hostname} calls itself {facts.hostname}; Slurm needs one name"
        )
    if facts.memory_mib < (memory := memory_needed(roles)):
        raise RefusedError(
            "too_little_memory", f"{machine.hostname} has {facts.memory_mib} MiB of memory; {memory} are needed"
        )
    for uid in facts.more.get("uid_slurm", []):
        if uid != str(SLURM_UID):
            raise RefusedError(
                "uid_mismatch", f"the user slurm has uid {uid} on {machine.hostname}; all machines need {SLURM_UID}"
            )


def clock_difference(clocks: Mapping[str, float]) -> str:
    """Say by how much the clocks differ and on which machines; empty where they agree.

    `clocks` has the seconds by which each is ahead of one and the same clock.
    """
    if not clocks:
        return ""
    ordered = sorted(clocks, key=lambda host: (clocks[host], host))
    difference = clocks[ordered[-1]] - clocks[ordered[0]]
    if difference <= LARGEST_SKEW_SECONDS:
        return ""
    # Against the one in the middle: where most agree, only those that are wrong are named.
    middle = ordered[(len(ordered) - 1) // 2]
    wrong = [host for host in ordered if abs(clocks[host] - clocks[middle]) > LARGEST_SKEW_SECONDS]
    named = [host for host in wrong or (ordered[0], ordered[-1]) if host != middle][:5]
    said = "; ".join(f"{host} is {say_seconds(clocks[host] - clocks[middle])} {middle}" for host in named)
    return f"the clocks differ by {round(difference)} s, and {LARGEST_SKEW_SECONDS} s are allowed: {said}"


def say_seconds(ahead: float) -> str:
    return f"{round(ahead)} s ahead of" if ahead >= 0 else f"{round(-ahead)} s behind"


def refuse_skew(clocks: Mapping[str, float]) -> None:
    if said := clock_difference(clocks):
        raise RefusedError("clock_skew", said)


SLURMD_SHAPE = re.compile(r"CPUs=(\d+) Boards=(\d+) SocketsPerBoard=(\d+) CoresPerSocket=(\d+) ThreadsPerCore=(\d+)")


def parse_shape(facts: MachineFacts, *, beside_controller: bool = False) -> NodeShape:
    """Take the shape from facts that were read together with `slurmd -C`."""
    said = " ".join(facts.more.get("NodeName", []))
    found = SLURMD_SHAPE.search(said)
    if found is None:
        raise NotReadyError("facts_unreadable", f"slurmd -C does not say the shape of {facts.hostname}: {said[:200]!r}")
    cpus, boards, sockets, cores, threads = (int(number) for number in found.groups())
    # slurmd -C reports the memory of the host, not of the slice: only /proc/meminfo knows the limit.
    limits = facts.more.get("limits") == ["installed"]
    memory = memory_for_jobs(facts.memory_mib, beside_controller=beside_controller) if limits else facts.memory_mib
    # Workers that joined without types keep their GPUs without: slurmctld would refuse the change.
    types = _gpu_types(facts) if limits else ()
    return NodeShape(cpus, boards, sockets, cores, threads, memory, facts.gpus, limits, types)


def _gpu_types(facts: MachineFacts) -> tuple[str, ...]:
    models = dict(line.split(" ", 1) for line in facts.more.get("gpu_model", []) if " " in line)
    types = tuple(names.gpu_type_for(models.get(path.removeprefix("/dev/nvidia"), "")) for path in facts.gpus)
    return types if any(types) else ()


_SHAPE = f"""
slurmd -C
for file in /proc/driver/nvidia/gpus/*/information; do
    if [ -r "$file" ]; then
        awk -F ':[ \\t]*' '/^Model/ {{ model = $2 }} /^Device Minor/ {{ print "gpu_model=" $2 " " model }}' "$file"
    fi
done
echo "limits=$(dpkg-query -W -f '${{db:Status-Status}}' {LIMITS} 2>/dev/null || true)"
"""


async def read_node_shape(machine: Machine, *, controller_address: str) -> NodeShape:
    """Read facts and `slurmd -C` in one round trip; slurmd must be installed."""
    facts = await read_facts(machine, _SHAPE)
    return parse_shape(facts, beside_controller=machine.address == controller_address)


async def read_versions(machine: Machine) -> dict[str, str]:
    """Ask each installed daemon for its version: Debian's answer `slurm-wlm 22.05.8`."""
    script = (
        "for daemon in slurmctld slurmdbd slurmd; do "
        'if command -v "$daemon" >/dev/null; then echo "$daemon=$(timeout 10 "$daemon" -V)"; fi; done'
    )
    result = await machine.read(script)
    if not result.ok:
        raise CommandError(f"read the versions of the daemons of {machine.hostname}", result)
    return result.values


async def read_uid(machine: Machine, user: str) -> int | None:
    """Return None where the machine says that it has no such user; no answer is not a no."""
    # 2 is getent's word for "not found".
    result = await machine.read(f"{{ getent passwd {quoted(user)} || [ $? -eq 2 ]; }} | cut -d: -f3; echo end")
    lines = result.stdout.split()
    if not result.ok or lines[-1:] != ["end"]:
        raise CommandError(f"read the id of {user} on {machine.hostname}", result)
    return int(lines[0]) if len(lines) > 1 else None
