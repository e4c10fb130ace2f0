"""The probe after a removal, and the receipt made of it. Each check is a command that prints what is left."""

from gpuaas_sdk import Machine, MachineReceipt, probe
from gpuaas_sdk.bundles.installing import SYSTEM_PATH
from gpuaas_sdk.machines.base import COPIED_ARTIFACTS
from gpuaas_sdk.owned.record import EXEMPT_KEPT, judge_by_record
from gpuaas_sdk.owned.snapshot import SNAPSHOT
from slurm_app.slurm import owned
from slurm_app.slurm.quick_route import KEPT_ROUTE
from slurm_app.slurm.role_removal import EVERYTHING, OWNED_PATHS, RoleRemoval
from slurm_app.slurm.roles import PACKAGES
from slurm_app.slurm.script import BASELINE, DAEMONS_ONLY, STATE_DIRECTORY, quoted

EXEMPT_LOGS = "exempt: logs stay and are listed"
EXEMPT_FENCES = "exempt: the platform's fences stay, so that a controller without a lease changes nothing later"

# not_before LIST: of the lines on standard input, those that the baseline does not have.
_FUNCTIONS = f"""
export LC_ALL=C
state={STATE_DIRECTORY}
{DAEMONS_ONLY}
not_before() {{
    if [ -d {BASELINE} ]; then sort -u | comm -13 {BASELINE}/"$1" -; else sort -u; fi
}}
{SYSTEM_PATH}existing() {{ while read -r path; do if [ -e "$path" ] || [ -L "$path" ]; then echo "$path"; fi; done; }}
"""


def _packages_function(removal: RoleRemoval) -> str:
    names = sorted({name for packages in PACKAGES.values() for name in packages})
    if removal.staying:
        only = (
            f'(cd "$state/bundle" && sort -u {removal.leaving_lists} | comm -23 - <(sort -u {removal.staying_lists}))'
        )
        return f"packages_of_ours() {{ {only}; }}"
    return (
        'packages_of_ours() { if [ -e "$state/bundle/names" ]; then sort -u "$state/bundle/names"; '
        f"else printf '%s\\n' {quoted(*names)}; fi; }}"
    )


def checks(removal: RoleRemoval) -> dict[str, str]:
    """Commands that print what is left of the roles that leave this machine."""
    mine = removal.belongings
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
        "users": f'for name in {quoted(*mine.users)}; do getent passwd "$name" | daemons_only || true; done | '
        "not_before users",
        "groups": f'for name in {quoted(*mine.users)}; do getent group "$name" | daemons_only || true; done | '
        "not_before groups",
        "ports": f"listening_ports | grep -Ex '{'|'.join(map(str, mine.ports))}' | not_before ports || true",
        "paths": f"printf '%s\\n' {quoted(*mine.trees, *mine.files)} | existing | not_before paths",
        "package_paths": f"if [ -e {OWNED_PATHS} ]; then existing <{OWNED_PATHS} | not_before paths | "
        'while read -r path; do if ! system_path "$path" && ! { [ -d "$path" ] && [ -n "$(ls -A "$path")" ]; }; '
        'then echo "$path"; fi; done; fi',
    }
    if removal.whole_machine:
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


def listings(removal: RoleRemoval) -> dict[str, tuple[str, str]]:
    """Files that stay on purpose: the command that lists them, and the reason."""
    found = {
        "logs": (f"find {quoted(*owned.LOG_TREES)} -type f 2>/dev/null || true", EXEMPT_LOGS),
        "fences": (f"find {owned.FENCES} -type f 2>/dev/null || true", EXEMPT_FENCES),
    }
    if removal.whole_machine:
        directories = quoted(*owned.EVERYTHING.directories)
        found["kept"] = (f"find {directories} -mindepth 1 2>/dev/null || true", EXEMPT_KEPT)
    return found


RECORD = {"record": f"ls -d {STATE_DIRECTORY} 2>/dev/null || true"}
"""The app's own record, which goes last."""


def functions(removal: RoleRemoval) -> str:
    record = owned.RECORD.functions(removal.belongings)
    return "\n".join([SNAPSHOT, record, _FUNCTIONS, _packages_function(removal)])


def commands(removal: RoleRemoval) -> dict[str, str]:
    """All that is asked of the machine: which record there is, the checks, and the listings."""
    # A cluster that an earlier version deployed, and that was never worked on since, has no list of names yet.
    recorded = f"if [ -d {BASELINE} ]; then recorded; [ -e {STATE_DIRECTORY}/brought ] || echo a snapshot; fi"
    listed = {key: command for key, (command, _) in listings(removal).items()}
    return {"recorded": recorded, **checks(removal), **listed}


async def read_receipt(machine: Machine, removal: RoleRemoval = EVERYTHING, *, came: bool = True) -> MachineReceipt:
    return judge(await probe(machine, commands(removal), functions=functions(removal)), removal, came=came)


def judge(seen: MachineReceipt, removal: RoleRemoval = EVERYTHING, *, came: bool = True) -> MachineReceipt:
    """Judge what was found. Without a record it may be somebody else's: that is unknown, not a no, unless the app never
    came. What the listings find may stay."""
    return judge_by_record(seen, {key: why for key, (_, why) in listings(removal).items()}, came=came)
