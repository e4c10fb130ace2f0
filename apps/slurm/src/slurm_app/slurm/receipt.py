"""The probe after a removal, and the receipt made of it. Each check is a command that prints what is left."""

import re
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

from gpuaas_sdk.machines.base import COPIED_ARTIFACTS, CommandError, Machine
from slurm_app.slurm import owned
from slurm_app.slurm.going import EVERYTHING, OWNED_PATHS, Going
from slurm_app.slurm.quick_route import KEPT_ROUTE
from slurm_app.slurm.roles import PACKAGES
from slurm_app.slurm.script import STATE_DIRECTORY, quoted
from slurm_app.slurm.snapshot import BASELINE, SNAPSHOT

NOTHING = "nothing"
EXEMPT_LOGS = "exempt: logs stay and are listed"
EXEMPT_FENCES = "exempt: the platform's fences stay, so that a controller without a lease changes nothing later"
EXEMPT_KEPT = "exempt: files that the app did not bring stay"
_FOUND_LIMIT = 2_000
_MARK = "==gpuaas-check=="

# not_before LIST: of the lines on standard input, those that the baseline does not have.
_FUNCTIONS = f"""
export LC_ALL=C
state={STATE_DIRECTORY}
not_before() {{
    if [ -d {BASELINE} ]; then sort -u | comm -13 {BASELINE}/"$1" -; else sort -u; fi
}}
system_path() {{ case $1 in {"|".join(owned.SYSTEM_PATHS)}) return 0 ;; *) return 1 ;; esac; }}
existing() {{ while read -r path; do if [ -e "$path" ] || [ -L "$path" ]; then echo "$path"; fi; done; }}
"""


def _packages_function(going: Going) -> str:
    names = sorted({name for packages in PACKAGES.values() for name in packages})
    if going.staying:
        only = f'(cd "$state/bundle" && sort -u {going.leaving_lists} | comm -23 - <(sort -u {going.staying_lists}))'
        return f"packages_of_ours() {{ {only}; }}"
    return (
        'packages_of_ours() { if [ -e "$state/bundle/names" ]; then sort -u "$state/bundle/names"; '
        f"else printf '%s\\n' {quoted(*names)}; fi; }}"
    )


def checks(going: Going) -> dict[str, str]:
    """Each prints what is left of what the roles brought that leave this machine."""
    mine = going.belongings
    of_ours = (
        'while read -r name rest; do if packages_of_ours | grep -Fxq "${name%%:*}"; then echo "$name $rest"; fi; done'
    )
    found = {
        "packages": f"dpkg-query -W -f '${{binary:Package}}\\n' | not_before package_names | {of_ours}",
        "processes": "for entry in /proc/[0-9]*; do "
        'if comm=$(cat "$entry/comm" 2>/dev/null); then '
        f'case $comm in {"|".join(mine.processes)}) echo "${{entry#/proc/}} $comm" ;; esac; fi; done',
        "units": f"for unit in {quoted(*mine.units)}; do "
        '[ "$(systemctl show --property=LoadState --value "$unit")" = not-found ] || echo "$unit"; done | '
        "not_before units",
        "users": f'for name in {quoted(*mine.users)}; do getent passwd "$name" | cut -d: -f1 || true; done | '
        "not_before users",
        "groups": f'for name in {quoted(*mine.users)}; do getent group "$name" | cut -d: -f1 || true; done | '
        "not_before groups",
        "ports": f"listening_ports | grep -Ex '{'|'.join(map(str, mine.ports))}' | not_before ports || true",
        "paths": f"printf '%s\\n' {quoted(*mine.trees, *mine.files)} | existing | not_before paths",
        "package_paths": f"if [ -e {OWNED_PATHS} ]; then existing <{OWNED_PATHS} | not_before paths | "
        'while read -r path; do if ! system_path "$path" && ! { [ -d "$path" ] && [ -n "$(ls -A "$path")" ]; }; '
        'then echo "$path"; fi; done; fi',
    }
    if going.whole_machine:
        found |= {
            "package_versions": f"if [ -d {BASELINE} ]; then "
            "dpkg-query -W -f '${binary:Package}\\t${Version}\\t${db:Status-Status}\\n' | sort | "
            f"comm -23 {BASELINE}/packages - | {of_ours}; fi",
            "routes": f"if [ -e {KEPT_ROUTE} ]; then ip route show table local | grep quickack || true; fi",
            "cgroups": "find /sys/fs/cgroup -maxdepth 2 -name 'slurm_*' 2>/dev/null || true",
            "copied_artifacts": f"find {COPIED_ARTIFACTS} -type f 2>/dev/null || true",
            "policy_rc_d": "grep -ls gpuaas-slurm /usr/sbin/policy-rc.d || true",
            "apt_sources": "grep -rls gpuaas-slurm /etc/apt || true",
            "cron": "{ find /etc/cron.d /etc/cron.daily /etc/cron.hourly /etc/cron.weekly /etc/cron.monthly "
            "/var/spool/cron -name '*slurm*' -o -name '*munge*' 2>/dev/null || true; } | not_before paths",
        }
    return found


def listings(going: Going) -> dict[str, tuple[str, str]]:
    """What stays on purpose: the command that lists it, and why."""
    found = {
        "logs": (f"find {quoted(*owned.LOG_TREES)} -type f 2>/dev/null || true", EXEMPT_LOGS),
        "fences": (f"find {owned.FENCES} -type f 2>/dev/null || true", EXEMPT_FENCES),
    }
    if going.whole_machine:
        directories = quoted(*owned.EVERYTHING.directories)
        found["kept"] = (f"find {directories} -mindepth 1 2>/dev/null || true", EXEMPT_KEPT)
    return found


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


def probe_script(going: Going = EVERYTHING) -> str:
    pieces = [SNAPSHOT, _FUNCTIONS, _packages_function(going)]
    pieces += [f'echo "{_MARK} baseline 0"', f"if [ -d {BASELINE} ]; then echo yes; fi"]
    for key, command in {**checks(going), **{key: command for key, (command, _) in listings(going).items()}}.items():
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


def judge(sections: dict[str, tuple[int, str]], at: str, going: Going = EVERYTHING) -> tuple[Check, ...]:
    """Empty is a yes. Without a baseline what is found may be somebody else's: that is unknown, not a no."""
    recorded = sections.get("baseline", (1, ""))[1] == "yes"
    judged = []
    for key, command in checks(going).items():
        status, found = sections.get(key, (-1, ""))
        if status != 0:
            ok: bool | None = None
            found = f"unknown: the probe ended with status {status}"
        elif not found:
            ok, found = True, NOTHING
        else:
            ok = False if recorded else None
            found = found if recorded else f"unknown whose, as nothing was recorded before: {found}"
        judged.append(Check(key, command, NOTHING, found[:_FOUND_LIMIT], ok, at))
    for key, (command, why) in listings(going).items():
        _, found = sections.get(key, (-1, ""))
        judged.append(Check(key, command, why, (found or NOTHING)[:_FOUND_LIMIT], True, at))
    return tuple(judged)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


async def read_receipt(machine: Machine, going: Going = EVERYTHING) -> Receipt:
    result = await machine.read(probe_script(going), timeout=60)
    if not result.ok:
        raise CommandError(f"probe {machine.hostname}", result)
    return Receipt(machine.hostname, machine.allocation_id, judge(parse_probe(result.stdout), _now(), going))


async def read_record_check(machine: Machine) -> Check:
    """The app's own record, which goes last."""
    result = await machine.read(RECORD_COMMAND)
    found = result.stdout.strip()
    ok = None if not result.ok else not found
    return Check("record", RECORD_COMMAND, NOTHING, found or NOTHING, ok, _now())


def node_check(host: str, found: str, *, gone: bool | None) -> Check:
    """The node record, which lies on the controller."""
    return Check("node_record", f"scontrol show node {host}", NOTHING, found, gone, _now())


def unverified_receipt(hostname: str, allocation_id: str, reason: str, going: Going = EVERYTHING) -> Receipt:
    """For a machine that cannot be asked any more: every check is there, and none is claimed."""
    at = _now()
    unknown = (Check(key, command, NOTHING, f"unknown: {reason}", None, at) for key, command in checks(going).items())
    return Receipt(hostname, allocation_id, tuple(unknown))
