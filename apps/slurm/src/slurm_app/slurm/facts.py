"""What is true of a machine before anything is changed. Reading changes nothing."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from gpuaas_sdk.machines.base import CommandError, Machine
from slurm_app import names
from slurm_app.errors import NotReadyError, RefusedError
from slurm_app.slurm.roles import Role, memory_needed
from slurm_app.slurm.script import quoted

FACTS_SCRIPT = """\
export LC_ALL=C
. /etc/os-release
echo "hostname=$(hostname)"
echo "os=${ID:-unknown}"
echo "os_version=${VERSION_ID:-unknown}"
echo "architecture=$(dpkg --print-architecture 2>/dev/null || uname -m)"
echo "cpus=$(nproc)"
while read -r key value _; do
    if [ "$key" = MemTotal: ]; then echo "memory_kib=$value"; fi
done </proc/meminfo
for device in /dev/nvidia[0-9]*; do
    if [ -c "$device" ]; then echo "gpu=$device"; fi
done
read -r inside outside _ </proc/self/uid_map
echo "uid_map=$inside:$outside"
if [ -e /sys/fs/cgroup/cgroup.controllers ]; then echo cgroup=v2; else echo cgroup=v1; fi
echo "init=$(cat /proc/1/comm)"
echo "clock=$(date +%s)"
for user in slurm munge; do
    if id=$(id -u "$user" 2>/dev/null); then echo "uid_$user=$id"; fi
done
"""

# munge refuses a credential that is older than five minutes; a tenth of that already confuses whoever reads logs.
LARGEST_SKEW_SECONDS = 30
SLURM_UID = 64030
"""Debian's own reservation: the same on every machine."""


@dataclass(frozen=True, slots=True)
class Facts:
    hostname: str
    os: str
    os_version: str
    architecture: str
    cpus: int
    memory_mib: int
    gpus: tuple[str, ...]
    own_user_namespace: bool
    """An unprivileged container: root in it may not move processes between cgroups or restrict devices."""
    cgroup: str
    init: str
    clock: int
    slurm_uid: int | None = None

    def as_evidence(self) -> dict[str, Any]:
        return asdict(self)


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


def _device_number(path: str) -> int:
    return int(re.sub(r"\D", "", path))


def parse_facts(text: str) -> Facts:
    single: dict[str, str] = {}
    gpus: list[str] = []
    for line in text.splitlines():
        key, separator, value = line.partition("=")
        if not separator:
            continue
        if key == "gpu":
            # /dev/nvidia0-ctl and the like are not devices that a job can be given.
            if re.fullmatch(r"/dev/nvidia[0-9]{1,3}", value):
                gpus.append(names.gpu_device(value))
        else:
            single[key] = value
    try:
        return Facts(
            hostname=single["hostname"].split(".")[0],
            os=single["os"],
            os_version=single["os_version"],
            architecture=single["architecture"],
            cpus=int(single["cpus"]),
            memory_mib=int(single["memory_kib"]) // 1024,
            gpus=tuple(sorted(gpus, key=_device_number)),
            own_user_namespace=single["uid_map"] != "0:0",
            cgroup=single["cgroup"],
            init=single["init"],
            clock=int(single["clock"]),
            slurm_uid=int(single["uid_slurm"]) if "uid_slurm" in single else None,
        )
    except (KeyError, ValueError) as error:
        raise NotReadyError("facts_unreadable", f"cannot read the facts of the machine: {error!r}") from error


async def read_facts(machine: Machine) -> Facts:
    result = await machine.read(FACTS_SCRIPT)
    if not result.ok:
        raise CommandError(f"read the facts of {machine.hostname}", result)
    return parse_facts(result.stdout)


def refuse_unfit(machine: Machine, facts: Facts, roles: Iterable[Role]) -> None:
    """What would fail later in a way that is harder to understand."""
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
    if facts.slurm_uid not in (None, SLURM_UID):
        raise RefusedError(
            "uid_mismatch",
            f"the user slurm has uid {facts.slurm_uid} on {machine.hostname}; all machines need {SLURM_UID}",
        )


def clock_difference(clocks: Mapping[str, int]) -> str:
    """Of machines that were read at the same moment: by how much and on which, or nothing where they agree."""
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
    return f"the clocks differ by {difference} s, and {LARGEST_SKEW_SECONDS} s are allowed: {said}"


def say_seconds(ahead: int) -> str:
    return f"{ahead} s ahead of" if ahead >= 0 else f"{-ahead} s behind"


def refuse_skew(clocks: Mapping[str, int]) -> None:
    if said := clock_difference(clocks):
        raise RefusedError("clock_skew", said)


SLURMD_SHAPE = re.compile(r"CPUs=(\d+) Boards=(\d+) SocketsPerBoard=(\d+) CoresPerSocket=(\d+) ThreadsPerCore=(\d+)")


def parse_shape(slurmd_says: str, facts: Facts) -> NodeShape:
    found = SLURMD_SHAPE.search(slurmd_says)
    if found is None:
        raise NotReadyError("facts_unreadable", f"cannot understand what slurmd -C said: {slurmd_says[:200]!r}")
    cpus, boards, sockets, cores, threads = (int(number) for number in found.groups())
    # slurmd -C reports the memory of the host, not of the slice: only /proc/meminfo knows the limit.
    return NodeShape(cpus, boards, sockets, cores, threads, facts.memory_mib, facts.gpus)


async def read_node_shape(machine: Machine) -> NodeShape:
    """Facts and `slurmd -C` in one round trip; slurmd must be installed."""
    result = await machine.read(FACTS_SCRIPT + "slurmd -C\n")
    if not result.ok:
        raise CommandError(f"read the node shape of {machine.hostname}", result)
    return parse_shape(result.stdout, parse_facts(result.stdout))


async def read_versions(machine: Machine) -> dict[str, str]:
    """What each daemon that is installed says of itself: Debian's say `slurm-wlm 22.05.8`."""
    script = (
        "for daemon in slurmctld slurmdbd slurmd; do "
        'if command -v "$daemon" >/dev/null; then echo "$daemon=$(timeout 10 "$daemon" -V)"; fi; done'
    )
    result = await machine.read(script)
    if not result.ok:
        raise CommandError(f"read the versions of the daemons of {machine.hostname}", result)
    return dict(line.split("=", 1) for line in result.stdout.splitlines() if "=" in line)


async def read_uid(machine: Machine, user: str) -> int | None:
    """None where the machine says that it has no such user; no answer is not a no."""
    # 2 is getent's word for "not found".
    result = await machine.read(f"{{ getent passwd {quoted(user)} || [ $? -eq 2 ]; }} | cut -d: -f3; echo end")
    lines = result.stdout.split()
    if not result.ok or lines[-1:] != ["end"]:
        raise CommandError(f"read the id of {user} on {machine.hostname}", result)
    return int(lines[0]) if len(lines) > 1 else None
