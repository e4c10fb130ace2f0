"""Daemon logs: errors that mean nothing are listed here with the reason; every other one is a finding."""

import re

from gpuaas_sdk.machines.base import CommandError, Machine
from slurm_app.slurm.config import LOGS

# Each pattern: why the line is harmless. The list may only shrink.
ALLOWED: dict[str, str] = {
    r"error: Could not open (node|job|reservation|trigger) state file .*: No such file or directory": (
        "the first start of a cluster: there is no earlier state to read"
    ),
    r"error: NOTE: Trying backup state save file\.": "the line that follows the one above",
    r"error: xcpuinfo_hwloc_topo_load: failed": (
        "slurmd looks for a topology that another slurmd saved, finds none, and reads the hardware itself"
    ),
    # Not an error of a daemon: slurmstepd says it in the log that a job was cancelled.
    r"error: \*\*\* (JOB|STEP) \S+ ON \S+ CANCELLED": "somebody cancelled a job",
    r"error: job \d+ is over its memory limit": "slurmstepd says that a job was ended; each deploy proves it with one",
    r"error: High latency for 1000 calls to gettimeofday\(\)": (
        "slurmctld times the clock of the machine when it starts; on a busy host that is slow, and harms nothing"
    ),
    r"error: _conn_readable: .* error\[104\]": "a client of slurmdbd ended before it took its last answer",
    r"error: No fed_mgr state file .* to recover": "the first start of a cluster; there is no federation",
}
_ALLOWED = [re.compile(pattern) for pattern in ALLOWED]

LOG_SCRIPT = f"""\
grep -HE '(error|fatal):' {LOGS}/*.log 2>/dev/null || true
grep -HEi '(error|emergency|critical):' /var/log/munge/munged.log 2>/dev/null || true
journalctl --unit=slurm-mariadb.service --no-pager --output=cat 2>/dev/null | grep '\\[ERROR\\]' || true
"""


def unexpected_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line and not any(p.search(line) for p in _ALLOWED)]


async def read_unexpected_errors(machine: Machine) -> list[str]:
    result = await machine.read(LOG_SCRIPT)
    if not result.ok:
        raise CommandError(f"read the logs of {machine.hostname}", result)
    return unexpected_lines(result.stdout)
