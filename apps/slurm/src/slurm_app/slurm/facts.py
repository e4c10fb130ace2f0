"""What is true of a machine before anything is changed. Reading changes nothing."""

import re
from dataclasses import asdict, dataclass
from typing import Any

from gpuaas_sdk.machines.base import CommandError, Machine
from slurm_app import names
from slurm_app.errors import NotReadyError, RefusedError
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
"""


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
        )
    except (KeyError, ValueError) as error:
        raise NotReadyError("facts_unreadable", f"cannot read the facts of the machine: {error!r}") from error


async def read_facts(machine: Machine) -> Facts:
    result = await machine.read(FACTS_SCRIPT)
    if not result.ok:
        raise CommandError(f"read the facts of {machine.hostname}", result)
    return parse_facts(result.stdout)


def refuse_unfit(machine: Machine, facts: Facts) -> None:
    """What would fail later in a way that is harder to understand."""
    if facts.init != "systemd":
        raise RefusedError("no_systemd", f"{machine.hostname} does not run systemd but {facts.init!r}")
    if facts.os != "debian":
        raise RefusedError(
            "unsupported_os", f"{machine.hostname} runs {facts.os} {facts.os_version}; the packages are Debian's"
        )
    if facts.hostname != machine.hostname:
        raise RefusedError(
            "hostname_mismatch", f"{machine.hostname} calls itself {facts.hostname}; Slurm needs one name"
        )


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


async def read_version(machine: Machine) -> str | None:
    """What the daemon itself reports, e.g. 22.05.8; None where it does not answer."""
    result = await machine.read("slurmctld -V 2>/dev/null || slurmd -V")
    found = re.search(r"\b(\d+\.\d+\.\d+)\b", result.stdout)
    return found.group(1) if result.ok and found else None


async def read_user_exists(machine: Machine, user: str) -> bool:
    return (await machine.read(f"getent passwd {quoted(user)}")).ok
