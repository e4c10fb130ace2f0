"""slurmd: a worker joins as a dynamic node. Nothing else in the cluster is restarted or told."""

from collections.abc import Mapping

from gpuaas_sdk.machines.base import Machine
from slurm_app import names
from slurm_app.slurm.config import render_gres_conf, render_slurmd_unit
from slurm_app.slurm.facts import NodeShape, read_node_shape
from slurm_app.slurm.script import put_file, quoted, step
from slurm_app.slurm.slurmctld import PMIX_LINK, ensure_node_deleted, read_configuration, read_node

GRES_CONF = "/etc/slurm/gres.conf"
DROP_IN_DIRECTORY = "/etc/systemd/system/slurmd.service.d"
DROP_IN = f"{DROP_IN_DIRECTORY}/gpuaas.conf"


def start_script(*, shape: NodeShape, files: Mapping[str, str]) -> str:
    """`files`: copies of the controller's configuration; empty where the worker is the controller's machine."""
    watched = [DROP_IN, GRES_CONF, *files]
    return "\n".join(
        [
            PMIX_LINK,
            f"mkdir -p {DROP_IN_DIRECTORY}",
            *(put_file(path, content) for path, content in files.items()),
            put_file(GRES_CONF, render_gres_conf(shape.gpus)),
            put_file(DROP_IN, render_slurmd_unit(shape)),
            f"ensure_unit_current slurmd.service {quoted(*watched)}",
        ]
    )


def registered_script(*, host: str, comment: str) -> str:
    """Runs where slurmctld is.

    The comment makes slurmctld save the record: a fresh dynamic node is otherwise forgotten when slurmctld is
    killed. It is written only where it differs, so a second run changes nothing.
    """
    host = names.host_name(host)
    comment = names.comment(comment)
    return "\n".join(
        [
            f"node() {{ timeout 10 scontrol --oneliner show node {quoted(host)}; }}",
            # Exactly these words: IDLE+DRAIN or a node that does not answer (IDLE*) runs nothing.
            "usable() { node | grep -Eq "
            "' State=(IDLE|MIXED|ALLOCATED|COMPLETING)([+](COMPLETING|DYNAMIC_NORM|PLANNED))* '; }",
            f"wait_for 30 {quoted(f'node {host} to be usable')} usable",
            f"if ! node | grep -Fq {quoted(f' Comment={comment} ')}; then",
            f"    timeout 10 scontrol update nodename={quoted(host)} comment={quoted(comment)}",
            "fi",
            "node | grep -Eo '(State|CfgTRES|Version|RealMemory)=[^ ]*'",
        ]
    )


async def ensure_worker_joined(controller: Machine, worker: Machine, *, comment: str) -> dict[str, str]:
    """slurmd on the worker, then its record in slurmctld. No other machine is touched, nothing is restarted."""
    shape = await read_node_shape(worker)
    if (await read_node(controller, worker.hostname)).refused_by_slurm:
        # The record keeps the refusal also when the cause is gone: begin anew.
        await worker.run_step(f"stop-slurmd-{worker.hostname}", step("systemctl stop slurmd.service"))
        await ensure_node_deleted(controller, worker.hostname)
    registered = registered_script(host=worker.hostname, comment=comment)
    if worker.allocation_id == controller.allocation_id:
        # One machine, one round trip.
        script = step(start_script(shape=shape, files={}), registered)
        result = await worker.run_step(f"join-worker-{worker.hostname}", script)
    else:
        files = await read_configuration(controller)
        await worker.run_step(f"start-slurmd-{worker.hostname}", step(start_script(shape=shape, files=files)))
        result = await controller.run_step(f"register-node-{worker.hostname}", step(registered))
    return dict(line.split("=", 1) for line in result.stdout.splitlines() if "=" in line)
