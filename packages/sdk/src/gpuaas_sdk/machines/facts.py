"""Facts about a machine that any app may want to know before it begins. Reading them changes nothing."""

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

from gpuaas_contract.base import JsonObject
from gpuaas_sdk.errors import ProtocolError
from gpuaas_sdk.machines.base import CommandError, ObservedMachine, parse_values
from gpuaas_sdk.runtime.errors import OperationFailed

_SCRIPT = r"""
export LC_ALL=C
. /etc/os-release
echo "hostname=$(hostname)"
echo "os=${ID:-unknown}"
echo "os_version=${VERSION_ID:-}"
echo "architecture=$(uname -m)"
echo "cpus=$(nproc)"
echo "memory_mib=$(awk '/^MemTotal:/ { print int($2 / 1024) }' /proc/meminfo)"
echo "disk_free_mib=$(df --output=avail -m / | tail -n 1 | tr -d ' ')"
for gpu in /dev/nvidia[0-9]*; do if [[ -c $gpu ]]; then echo "gpu=$gpu"; fi; done
read -r inside outside _ </proc/self/uid_map
echo "uid_map=$inside:$outside"
if [[ -e /sys/fs/cgroup/cgroup.controllers ]]; then echo cgroup=v2; else echo cgroup=v1; fi
if [[ -d /run/systemd/system ]]; then echo init=systemd; else echo "init=$(cat /proc/1/comm)"; fi
echo "clock=$(date +%s.%N)"
"""
# /dev/nvidia0-ctl and the like are not devices that a program can be given.
_GPU = re.compile(r"/dev/nvidia[0-9]{1,3}")


@dataclass(frozen=True, slots=True)
class MachineFacts:
    hostname: str
    """Without a domain."""
    os: str
    os_version: str
    architecture: str
    cpus: int
    memory_mib: int
    """As much as the machine may use, which on a slice is less than its host has."""
    disk_free_mib: int
    gpus: tuple[str, ...]
    """Device files, by their number."""
    own_user_namespace: bool
    """An unprivileged container: root in it may not move processes between cgroups or restrict devices."""
    cgroup: str
    init: str
    clock_skew_seconds: float
    """How far the machine's clock is ahead of this one, as far as it can be told: the way there and back counts."""
    more: Mapping[str, list[str]] = field(default_factory=dict)
    """Values that the caller's own lines printed, by their key."""

    def as_evidence(self) -> JsonObject:
        facts = asdict(self)
        del facts["more"]
        return facts


async def read_facts(machine: ObservedMachine, more: str = "") -> MachineFacts:
    """`more` is bash that prints further lines `KEY=VALUE`, read in the same round trip."""
    asked = datetime.now(UTC).timestamp()
    result = await machine.read(_SCRIPT + more)
    heard = datetime.now(UTC).timestamp()
    if not result.ok:
        raise CommandError(f"read the facts of {machine.hostname}", result)
    try:
        return parse_facts(result.stdout, asked, heard)
    except ProtocolError as error:
        raise OperationFailed("facts_unreadable", f"{machine.hostname}: {error}", retryable=True) from error


def parse_facts(text: str, asked: float, heard: float) -> MachineFacts:
    values = parse_values(text)
    try:
        ours = {key: values.pop(key)[0] for key in _KEYS}
        clock = float(ours["clock"])
        skew = clock - heard if clock > heard else clock - asked if clock < asked else 0.0
        gpus = [path for path in values.pop("gpu", []) if _GPU.fullmatch(path)]
        return MachineFacts(
            hostname=ours["hostname"].split(".")[0],
            os=ours["os"],
            os_version=ours["os_version"],
            architecture=ours["architecture"],
            cpus=int(ours["cpus"]),
            memory_mib=int(ours["memory_mib"]),
            disk_free_mib=int(ours["disk_free_mib"]),
            gpus=tuple(sorted(gpus, key=lambda path: int(path.removeprefix("/dev/nvidia")))),
            own_user_namespace=ours["uid_map"] != "0:0",
            cgroup=ours["cgroup"],
            init=ours["init"],
            clock_skew_seconds=round(skew, 3),
            more=values,
        )
    except (KeyError, ValueError) as error:
        raise ProtocolError(f"cannot read the machine's facts: unexpected answer: {error!r}") from error


_KEYS = (
    "hostname",
    "os",
    "os_version",
    "architecture",
    "cpus",
    "memory_mib",
    "disk_free_mib",
    "uid_map",
    "cgroup",
    "init",
    "clock",
)
