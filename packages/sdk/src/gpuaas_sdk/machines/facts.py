"""Facts about a machine that any app may need before it begins."""

from dataclasses import dataclass
from datetime import UTC, datetime

from gpuaas_sdk.errors import ProtocolError
from gpuaas_sdk.machines.base import CommandError, Machine

_SCRIPT = r"""
. /etc/os-release
echo "hostname=$(hostname)"
echo "os=$ID"
echo "os_version=${VERSION_ID:-}"
echo "architecture=$(uname -m)"
echo "cpus=$(nproc)"
echo "memory_mib=$(awk '/^MemTotal:/ { print int($2 / 1024) }' /proc/meminfo)"
echo "disk_free_mib=$(df --output=avail -m / | tail -n 1 | tr -d ' ')"
for gpu in /dev/nvidia[0-9]*; do if [[ -e $gpu ]]; then echo "gpu=$gpu"; fi; done
if [[ -d /run/systemd/system ]]; then echo init=systemd; else echo init=other; fi
echo "clock=$(date +%s.%N)"
"""


@dataclass(frozen=True, slots=True)
class MachineFacts:
    hostname: str
    os: str
    os_version: str
    architecture: str
    cpus: int
    memory_mib: int
    disk_free_mib: int
    gpus: tuple[str, ...]
    init: str
    clock_skew_seconds: float
    """How far the machine's clock is ahead of this one, as far as it can be told: the way there and back counts."""


async def read_facts(machine: Machine) -> MachineFacts:
    asked = datetime.now(UTC).timestamp()
    result = await machine.read(_SCRIPT)
    heard = datetime.now(UTC).timestamp()
    if not result.ok:
        raise CommandError(f"read the facts of {machine.hostname}", result)
    return parse_facts(result.stdout, asked, heard)


def parse_facts(text: str, asked: float, heard: float) -> MachineFacts:
    values: dict[str, str] = {}
    gpus: list[str] = []
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key == "gpu":
            gpus.append(value)
        else:
            values[key] = value
    try:
        clock = float(values["clock"])
        skew = clock - heard if clock > heard else clock - asked if clock < asked else 0.0
        return MachineFacts(
            hostname=values["hostname"],
            os=values["os"],
            os_version=values["os_version"],
            architecture=values["architecture"],
            cpus=int(values["cpus"]),
            memory_mib=int(values["memory_mib"]),
            disk_free_mib=int(values["disk_free_mib"]),
            gpus=tuple(sorted(gpus)),
            init=values["init"],
            clock_skew_seconds=round(skew, 3),
        )
    except (KeyError, ValueError) as error:
        raise ProtocolError(f"cannot read the machine's facts: unexpected answer: {error}") from error
