"""Taking a cluster apart: exactly what the app brought, by name, compared with what was there before.

Nothing here touches a machine on which the install never began: daemons of somebody else may run there.
"""

from gpuaas_sdk.machines.base import COPIED_ARTIFACTS, Machine
from slurm_app import names
from slurm_app.limits.package import source
from slurm_app.slurm import owned
from slurm_app.slurm.nodes import delete_node_script
from slurm_app.slurm.packages import DEBIAN
from slurm_app.slurm.quick_route import RESTORE_ROUTE
from slurm_app.slurm.role_removal import RoleRemoval
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
_REMOVE = f"""
before() {{ grep -Fxq -- "$2" "{BASELINE}/$1"; }}
if [ -z "$staying" ]; then
    for link in /usr/lib/*/pmix2/lib/libpmix.so; do
        if [ -L "$link" ] && ! before paths "$link"; then rm -f "$link"; fi
    done
fi
remove_paths
remove_users
remove_package_paths
remove_directories
systemctl daemon-reload
"""


def clean_script(removal: RoleRemoval) -> str:
    return step(
        DEBIAN.removal_functions(removal.leaving, removal.staying),
        _REMOVE_COPIES,
        _ONLY_IF_OURS,
        owned.RECORD.functions(removal.belongings),
        "hold_record\nensure_listed\nrelease_record",
        "purge_packages",
        _REMOVE,
    )


async def ensure_machine_cleaned(machine: Machine, removal: RoleRemoval) -> dict[str, str]:
    return (await machine.run_step("remove-packages", clean_script(removal), timeout=600)).values


async def ensure_record_forgotten(machine: Machine) -> None:
    """Last of all, after a clean receipt: without the record nobody could tell ours from theirs."""
    await machine.run_step("forget-record", f"rm -rf {STATE_DIRECTORY}\n")
