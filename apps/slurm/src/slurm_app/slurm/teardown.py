"""Taking a cluster apart: exactly what the app brought, by name, compared with what was there before.

Nothing here touches a machine on which the install never began: daemons of somebody else may run there.
"""

from gpuaas_sdk.machines.base import COPIED_ARTIFACTS, Machine
from slurm_app import names
from slurm_app.limits.package import source
from slurm_app.slurm import owned
from slurm_app.slurm.dpkg import DPKG_FUNCTIONS, POLICY_FUNCTIONS
from slurm_app.slurm.nodes import delete_node_script
from slurm_app.slurm.quick_route import RESTORE_ROUTE
from slurm_app.slurm.role_removal import OWNED_PATHS, RoleRemoval
from slurm_app.slurm.script import BASELINE, STATE_DIRECTORY, quoted, step

_ONLY_IF_OURS = f"""
if [ ! -d {BASELINE} ] || [ ! -d "$state/bundle" ]; then
    echo 'skipped=nothing was installed here by the app'
    exit 0
fi
"""


# A controller that does not answer leaves the jobs unknown. That is said, and does not stop a decommission:
# the whole cluster goes, and the processes are ended with the daemons.
_CANCEL = """
if ! systemctl is-active --quiet slurmctld.service; then echo 'jobs=unknown: slurmctld is not running'; exit 0; fi
if ! queue=$(timeout 20 squeue --noheader --format=%A 2>&1); then
    echo "jobs=unknown: $(tail -n 1 <<<"$queue")"
    exit 0
fi
timeout 10 scontrol update "partitionname=$partition" state=DOWN 2>/dev/null || true
if [ -n "$queue" ]; then
    # Killed at once: without that, a job that does not listen is left alone for KillWait, half a minute.
    timeout 20 scancel --quiet --signal=KILL --full $queue || true
    timeout 20 scancel --quiet $queue || true
    # A node whose slurmd is stopped while it completes a job stays busy for ever: wait for the nodes too.
    # sinfo prints a line with 0 nodes where none is completing.
    idle() {
        [ -z "$(timeout 10 squeue --noheader)" ] &&
            ! timeout 10 sinfo --noheader --states=completing --format=%D | grep -q '[1-9]'
    }
    wait_for 30 'the cancelled jobs to end' idle || true
fi
echo "jobs=$(wc -w <<<"$queue") cancelled, $(timeout 10 squeue --noheader | wc -l) left"
"""


async def ensure_jobs_cancelled(controller: Machine, *, partition: str) -> dict[str, str]:
    script = step(_ONLY_IF_OURS, f"partition={quoted(names.partition_name(partition))}", _CANCEL)
    return (await controller.run_step("cancel-jobs", script)).values


def _stop(units: tuple[str, ...]) -> str:
    """Stop keeps them from being restarted, the kill makes it quick: all that they could still save is removed.

    The kill also reaches the job steps, which slurmd's KillMode=process leaves alive.
    """
    return f"""
units=()
for unit in {quoted(*units)}; do
    if [ "$(systemctl show --property=LoadState --value "$unit")" = loaded ]; then units+=("$unit"); fi
    rm -f "$state/applied/$unit"
done
if [ "${{#units[@]}}" -gt 0 ]; then
    systemctl disable --quiet "${{units[@]}}" 2>/dev/null || true
    systemctl stop --no-block "${{units[@]}}"
    systemctl kill --kill-whom=all --signal=KILL "${{units[@]}}" 2>/dev/null || true
    timeout 60 systemctl stop "${{units[@]}}"
    systemctl kill --kill-whom=all --signal=KILL "${{units[@]}}" 2>/dev/null || true
    systemctl reset-failed "${{units[@]}}" 2>/dev/null || true
fi
for unit in {quoted(*units)}; do echo "$unit=$(systemctl is-active "$unit" || true)"; done
"""


# The groups and private file systems of jobs that no Epilog has seen.
_SWEEP = f"{source('functions.sh')}\nsweep || true\n"


async def ensure_worker_stopped(worker: Machine) -> dict[str, str]:
    """Stop and disable slurmd before its record is deleted, or the node comes back as a ghost."""
    script = step(_ONLY_IF_OURS, _stop(("slurmd.service",)), _SWEEP)
    return (await worker.run_step("stop-slurmd", script)).values


async def ensure_node_deleted(controller: Machine, host: str) -> dict[str, str]:
    """Delete a record; one that slurmctld does not let go is only noted, since it goes with slurmctld's state."""
    script = step(
        _ONLY_IF_OURS,
        f"if said=$( exec 2>&1\n{delete_node_script(host, seconds=10)}\n); then",
        '    echo "$said"',
        "else",
        '    echo "node=goes with the controller: $(tail -n 1 <<<"$said")"',
        "fi",
    )
    return (await controller.run_step(f"delete-node-{names.host_name(host)}", script)).values


async def ensure_daemons_stopped(machine: Machine, removal: RoleRemoval) -> dict[str, str]:
    sweep = _SWEEP if "slurmd.service" in removal.belongings.units else ""
    script = step(_ONLY_IF_OURS, _stop(removal.belongings.units), sweep, RESTORE_ROUTE)
    return (await machine.run_step("stop-daemons", script)).values


# Also of an install that ended before it began: the copy is made first.
_REMOVE_COPIES = f"""
if [ -d {BASELINE} ] && [ -z "$staying" ]; then rm -rf {COPIED_ARTIFACTS}; fi
"""
# dpkg, not apt: it purges the named packages or refuses, and never takes along what somebody else installed
# on top. What the packages own is written down before they go: only that is looked for afterwards, so nothing
# that a person made meanwhile is ever taken for ours, also where the install was interrupted.
_PURGE = f"""
allow_daemon_starts
leaving_packages() {{
    if [ -n "$staying" ]; then (cd "$state/bundle" && sort -u $leaving | comm -23 - <(sort -u $staying))
    else cat "$state/bundle/names"; fi
}}
# mend_postrm PACKAGE PATTERN: what fits does nothing.
mend_postrm() {{
    local script=/var/lib/dpkg/info/$1.postrm
    grep -qs "$2" "$script" || return 0
    sed "s#$2#:#" "$script" >"$state/postrm"
    chmod 0755 "$state/postrm"
    mv "$state/postrm" "$script"
}}
added=$(comm -13 {BASELINE}/package_names <(dpkg-query -W -f '${{binary:Package}}\\n' | sort) |
    while read -r package; do
        if leaving_packages | grep -Fxq "${{package%%:*}}"; then echo "$package"; fi
    done)
# An install that was killed leaves its repository behind, and files that dpkg does not yet, or no longer, list.
half_unpacked() {{
    [ -d "$state/repository" ] || return 0
    for deb in "$state"/repository/*.deb; do
        package=${{deb##*/}}
        if leaving_packages | grep -Fxq "${{package%%_*}}"; then dpkg-deb --fsys-tarfile "$deb" | tar -t; fi
    done | sed -E 's#^[.]##; s#/$##; p; s#$#.dpkg-new#p; s#new$#tmp#'
}}
# By their real place: /lib is a link to /usr/lib, and the baseline knows what lies there, not the link.
{{
    cat {OWNED_PATHS} 2>/dev/null || true
    if [ -n "$added" ]; then dpkg -L $added 2>/dev/null || true; fi
    half_unpacked
}} | sed -En 's#^/(bin|sbin|lib|lib32|lib64|libx32)/#/usr/\\1/#; \\#^/(etc|usr|opt|srv|var)/#p' | sort -u |
    comm -23 - {BASELINE}/paths >{OWNED_PATHS}.new
mv {OWNED_PATHS}.new {OWNED_PATHS}
if [ -n "$added" ]; then
    rm -f "$state/packages.done"
    forbid_daemon_starts
    trap 'allow_daemon_starts' EXIT
    # Debian's purge would take all of /etc/slurm along, also what people put there; ours goes by its names below.
    mend_postrm slurm-wlm-basic-plugins 'rm -rf /etc/slurm$'
    # It also deletes the user munge, also one who was there before, and fails where that is a person.
    mend_postrm munge 'deluser .* munge$'
    run_dpkg --force-remove-reinstreq --purge $added
    allow_daemon_starts
fi
# Also where an earlier run was killed with the last package gone.
finish_triggers
echo "packages=$(wc -w <<<"$added")"
"""
_REMOVE = f"""
before() {{ grep -Fxq -- "$2" "{BASELINE}/$1"; }}
if [ -z "$staying" ]; then
    for link in /usr/lib/*/pmix2/lib/libpmix.so; do
        if [ -L "$link" ] && ! before paths "$link"; then rm -f "$link"; fi
    done
fi
remove_paths
remove_users
system_path() {{ case $1 in {"|".join(owned.SYSTEM_PATHS)}) return 0 ;; *) return 1 ;; esac; }}
removed=0
if [ -e {OWNED_PATHS} ]; then
    while read -r path; do
        if {{ [ -e "$path" ] || [ -L "$path" ]; }} && ! system_path "$path"; then
            # A link to a directory is never ours alone.
            if [ -L "$path" ] && [ -d "$path" ]; then continue; fi
            if [ -d "$path" ]; then
                # Python writes there what no package lists, and no script removes where the package was not configured.
                rm -rf "$path/__pycache__"
                rmdir "$path" 2>/dev/null || true
            else
                rm -f "$path"
            fi
            removed=$((removed + 1))
        fi
    done < <(sort -r {OWNED_PATHS})
fi
remove_directories
systemctl daemon-reload
echo "paths=$removed"
"""


def clean_script(removal: RoleRemoval) -> str:
    return step(
        POLICY_FUNCTIONS,
        DPKG_FUNCTIONS,
        f"leaving={quoted(removal.leaving_lists)} staying={quoted(removal.staying_lists)}",
        _REMOVE_COPIES,
        _ONLY_IF_OURS,
        owned.RECORD.functions(removal.belongings),
        "hold_record\nensure_listed\nrelease_record",
        _PURGE,
        _REMOVE,
    )


async def ensure_machine_cleaned(machine: Machine, removal: RoleRemoval) -> dict[str, str]:
    return (await machine.run_step("remove-packages", clean_script(removal), timeout=600)).values


async def ensure_record_forgotten(machine: Machine) -> None:
    """Last of all, after a clean receipt: without the record nobody could tell ours from theirs."""
    await machine.run_step("forget-record", f"rm -rf {STATE_DIRECTORY}\n")
