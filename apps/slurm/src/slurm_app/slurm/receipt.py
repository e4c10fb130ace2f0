"""The probe after a removal, and the receipt made of it. Each check is a command that prints what is left."""

import re
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from gpuaas_sdk.machines.base import CommandError, Machine
from slurm_app.slurm import owned
from slurm_app.slurm.roles import PACKAGES
from slurm_app.slurm.script import STATE_DIRECTORY, quoted
from slurm_app.slurm.snapshot import BASELINE, INSTALLED, SNAPSHOT

NOTHING = "nothing"
EXEMPT = "exempt: logs stay and are listed"
_FOUND_LIMIT = 2_000
_MARK = "==gpuaas-check=="

# not_before LIST: of the lines on standard input, those that the baseline does not have.
_FUNCTIONS = f"""
export LC_ALL=C
state={STATE_DIRECTORY}
not_before() {{
    if [ -d {BASELINE} ]; then sort -u | comm -13 {BASELINE}/"$1" -; else sort -u; fi
}}
packages_of_ours() {{
    if [ -e "$state/bundle/names" ]; then sort -u "$state/bundle/names"
    else printf '%s\\n' {quoted(*sorted({name for names in PACKAGES.values() for name in names}))}; fi
}}
system_path() {{ case $1 in {"|".join(owned.SYSTEM_PATHS)}) return 0 ;; *) return 1 ;; esac; }}
existing() {{ while read -r path; do if [ -e "$path" ] || [ -L "$path" ]; then echo "$path"; fi; done; }}
"""

CHECKS: dict[str, str] = {
    "packages": "dpkg-query -W -f '${binary:Package}\\n' | not_before package_names | "
    'while read -r name; do if packages_of_ours | grep -Fxq "${name%%:*}"; then echo "$name"; fi; done',
    "package_versions": f"if [ -d {BASELINE} ]; then "
    "dpkg-query -W -f '${binary:Package}\\t${Version}\\t${db:Status-Status}\\n' | sort | "
    f"comm -23 {BASELINE}/packages - | "
    "while read -r name rest; do "
    'if packages_of_ours | grep -Fxq "${name%%:*}"; then echo "$name $rest"; fi; done; fi',
    "processes": "for entry in /proc/[0-9]*; do "
    'if comm=$(cat "$entry/comm" 2>/dev/null); then '
    f'case $comm in {"|".join(owned.PROCESSES)}) echo "${{entry#/proc/}} $comm" ;; esac; fi; done',
    "units": f"for unit in {quoted(*owned.UNITS)}; do "
    '[ "$(systemctl show --property=LoadState --value "$unit")" = not-found ] || echo "$unit"; done | '
    "not_before units",
    "users": f'for name in {quoted(*owned.USERS)}; do getent passwd "$name" | cut -d: -f1 || true; done | '
    "not_before users",
    "groups": f'for name in {quoted(*owned.USERS)}; do getent group "$name" | cut -d: -f1 || true; done | '
    "not_before groups",
    "ports": f"listening_ports | grep -Ex '{'|'.join(map(str, owned.PORTS))}' | not_before ports || true",
    "paths": f"printf '%s\\n' {quoted(*owned.TREES)} | existing | not_before paths",
    "installed_paths": f"if [ -d {INSTALLED} ]; then comm -13 {BASELINE}/paths {INSTALLED}/paths | existing | "
    'while read -r path; do if ! system_path "$path"; then echo "$path"; fi; done; fi',
    "cgroups": "find /sys/fs/cgroup -maxdepth 2 -name 'slurm_*' 2>/dev/null || true",
    "policy_rc_d": "grep -ls gpuaas-slurm /usr/sbin/policy-rc.d || true",
    "apt_sources": "grep -rls gpuaas-slurm /etc/apt || true",
    "cron": "{ find /etc/cron.d /etc/cron.daily /etc/cron.hourly /etc/cron.weekly /etc/cron.monthly "
    "/var/spool/cron -name '*slurm*' -o -name '*munge*' 2>/dev/null || true; } | not_before paths",
}
LOGS_COMMAND = f"find {quoted(*owned.LOG_TREES)} -type f 2>/dev/null || true"
RECORD_COMMAND = f"ls -d {STATE_DIRECTORY} 2>/dev/null || true"


@dataclass(frozen=True, slots=True)
class Check:
    check: str
    command: str
    expected: str
    found: str
    ok: bool | None
    """None: unknown, which is never taken for a yes."""
    at: str


@dataclass(frozen=True, slots=True)
class Receipt:
    hostname: str
    allocation_id: str
    checks: tuple[Check, ...]

    @property
    def clean(self) -> bool:
        return bool(self.checks) and all(check.ok is True for check in self.checks)

    @property
    def left(self) -> tuple[Check, ...]:
        return tuple(check for check in self.checks if check.ok is not True)

    def with_check(self, check: Check) -> "Receipt":
        return Receipt(self.hostname, self.allocation_id, (*self.checks, check))

    def as_evidence(self) -> dict[str, Any]:
        return {
            "hostname": self.hostname,
            "allocation_id": self.allocation_id,
            "clean": self.clean,
            "checks": [asdict(check) for check in self.checks],
        }


def probe_script() -> str:
    pieces = [SNAPSHOT, _FUNCTIONS, f'echo "{_MARK} baseline 0"', f"if [ -d {BASELINE} ]; then echo yes; fi"]
    for key, command in {**CHECKS, "logs": LOGS_COMMAND}.items():
        pieces.append(
            f"if found=$(set -eo pipefail; {command}); then status=0; else status=$?; fi\n"
            f'printf \'%s\\n%s\\n\' "{_MARK} {key} $status" "$found"'
        )
    return "set +e\n" + "\n".join(pieces) + "\n"


def parse_probe(text: str) -> dict[str, tuple[int, str]]:
    sections: dict[str, tuple[int, list[str]]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        marked = re.fullmatch(rf"{_MARK} (\w+) (\d+)", line)
        if marked:
            lines = []
            sections[marked.group(1)] = (int(marked.group(2)), lines)
        elif line:
            lines.append(line)
    return {key: (status, "\n".join(found)) for key, (status, found) in sections.items()}


def judge(sections: dict[str, tuple[int, str]], at: str) -> tuple[Check, ...]:
    """Empty is a yes. Without a baseline what is found may be somebody else's: that is unknown, not a no."""
    recorded = sections.get("baseline", (1, ""))[1] == "yes"
    checks = []
    for key, command in CHECKS.items():
        status, found = sections.get(key, (-1, ""))
        if status != 0:
            ok: bool | None = None
            found = f"unknown: the probe ended with status {status}"
        elif not found:
            ok, found = True, NOTHING
        else:
            ok = False if recorded else None
            found = found if recorded else f"unknown whose, as nothing was recorded before: {found}"
        checks.append(Check(key, command, NOTHING, found[:_FOUND_LIMIT], ok, at))
    _, logs = sections.get("logs", (-1, ""))
    checks.append(Check("logs", LOGS_COMMAND, EXEMPT, (logs or NOTHING)[:_FOUND_LIMIT], True, at))
    return tuple(checks)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


async def read_receipt(machine: Machine) -> Receipt:
    result = await machine.read(probe_script(), timeout=60)
    if not result.ok:
        raise CommandError(f"probe {machine.hostname}", result)
    return Receipt(machine.hostname, machine.allocation_id, judge(parse_probe(result.stdout), _now()))


async def read_record_check(machine: Machine) -> Check:
    """The app's own record, which goes last."""
    result = await machine.read(RECORD_COMMAND)
    found = result.stdout.strip()
    ok = None if not result.ok else not found
    return Check("record", RECORD_COMMAND, NOTHING, found or NOTHING, ok, _now())


def unverified_receipt(machine: Machine, reason: str) -> Receipt:
    """For a machine that cannot be asked any more: every check is there, and none is claimed."""
    at = _now()
    checks = (Check(key, command, NOTHING, f"unknown: {reason}", None, at) for key, command in CHECKS.items())
    return Receipt(machine.hostname, machine.allocation_id, tuple(checks))
