"""slurmd: a worker joins as a dynamic node. Nothing else in the cluster is restarted or told."""

from collections.abc import Sequence

from gpuaas_sdk.machines.base import Machine
from slurm_app import names
from slurm_app.slurm.config import MACHINE_GRES_CONF, render_gres_conf, render_slurmd_unit
from slurm_app.slurm.facts import NodeShape, read_node_shape
from slurm_app.slurm.nodes import USABLE
from slurm_app.slurm.script import PMIX_LINK, put_file, quoted, step

DROP_IN_DIRECTORY = "/etc/systemd/system/slurmd.service.d"
DROP_IN = f"{DROP_IN_DIRECTORY}/gpuaas.conf"
UNIT = "slurmd.service"
SCHEDULERS_FOR_ROOT = ("/etc/cron.allow", "/etc/at.allow")
"""Who may have cron and at start processes, which belong to no job."""


def unit_script(*, shape: NodeShape, conf_server: str, features: Sequence[str] = ()) -> str:
    return "\n".join(
        [
            PMIX_LINK,
            # Debian's client package brings the directory only together with the controller's.
            f"mkdir -p {DROP_IN_DIRECTORY} /etc/slurm",
            put_file(MACHINE_GRES_CONF, render_gres_conf(shape.gpus, shape.gpu_types)),
            # A list that somebody made before stays as it is.
            *(f"[ -e {path} ] || {put_file(path, 'root')}" for path in SCHEDULERS_FOR_ROOT if shape.limits),
            put_file(DROP_IN, render_slurmd_unit(shape, conf_server=conf_server, features=features)),
            f"ensure_enabled {UNIT}",
        ]
    )


async def configuration_script(worker: Machine, *, conf_server: str, features: Sequence[str] = ()) -> str:
    """Do all that needs no slurmctld, so that slurmd only has to be started then. One that runs is left alone."""
    shape = await read_node_shape(worker, controller_address=conf_server)
    script = unit_script(shape=shape, conf_server=conf_server, features=features)
    return f"if ! systemctl is-active --quiet {UNIT}; then\n{script}\nfi"


async def ensure_worker_configured(worker: Machine, *, conf_server: str, features: Sequence[str] = ()) -> None:
    script = await configuration_script(worker, conf_server=conf_server, features=features)
    await worker.run_step(f"configure-slurmd-{worker.hostname}", step(script, "ensure_reloaded"))


def start_script(*, shape: NodeShape, conf_server: str, features: Sequence[str] = (), anew: bool = False) -> str:
    """`anew`: slurmctld has no record of it, and a slurmd that runs does not register a second time by itself."""
    return "\n".join(
        [
            unit_script(shape=shape, conf_server=conf_server, features=features),
            f'rm -f "$state/applied/{UNIT}"' if anew else "",
            f"ensure_unit_current {UNIT} {quoted(DROP_IN, MACHINE_GRES_CONF)}",
        ]
    )


_FIT_DEFAULT_MEMORY = """
fit_default_memory() {
    local memory now partition
    memory=$(node | sed -nE 's/.* CPUTot=([0-9]+) .* RealMemory=([0-9]+) .*/\\2 \\1/p' | awk '{ print int($1 / $2) }')
    now=$(sed -n 's/^DefMemPerCPU=//p' /etc/slurm/slurm.conf)
    if [ -z "$memory" ] || [ -z "$now" ] || [ "$now" -le "$memory" ]; then return 0; fi
    for partition in $(sed -n 's/^PartitionName=\\([^ ]*\\) .*/\\1/p' /etc/slurm/slurm.conf); do
        timeout 10 scontrol update partitionname="$partition" defmempercpu="$memory"
    done
    sed -i "s/^DefMemPerCPU=.*/DefMemPerCPU=$memory/" /etc/slurm/slurm.conf
}
exec 9</etc/slurm
flock 9
fit_default_memory
exec 9<&-
"""
"""A job that asks for no memory gets this much for each processor: with more than this node has, none would run here.
slurmctld reads the file at its next start only; until then the partitions have it."""


def registered_script(*, host: str, comment: str, fit_memory: bool = True) -> str:
    """Runs where slurmctld is. `fit_memory`: the default memory of jobs is the app's own, and nobody's choice.

    The comment makes slurmctld save the record: a fresh dynamic node is otherwise forgotten when slurmctld is
    killed. It is written only where it differs, so a second run changes nothing.
    """
    host = names.host_name(host)
    comment = names.comment(comment)
    return "\n".join(
        [
            f"node() {{ timeout 10 scontrol --oneliner show node {quoted(host)}; }}",
            f"usable() {{ node | grep -Eq ' State={USABLE} '; }}",
            f"wait_for 30 {quoted(f'node {host} to be usable')} usable",
            f"if ! node | grep -Fq {quoted(f' Comment={comment} ')}; then",
            f"    timeout 10 scontrol update nodename={quoted(host)} comment={quoted(comment)}",
            "fi",
            _FIT_DEFAULT_MEMORY if fit_memory else "",
            "node | grep -Eo '(State|CfgTRES|Version|RealMemory|AvailableFeatures)=[^ ]*'",
        ]
    )
