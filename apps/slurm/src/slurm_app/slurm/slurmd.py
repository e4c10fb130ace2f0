"""slurmd: a worker joins as a dynamic node. Nothing else in the cluster is restarted or told."""

from gpuaas_sdk.machines.base import Machine
from slurm_app import names
from slurm_app.slurm.config import render_slurmd_unit
from slurm_app.slurm.facts import NodeShape, read_node_shape
from slurm_app.slurm.script import put_file, quoted, step
from slurm_app.slurm.slurmctld import (
    PMIX_LINK,
    ensure_node_deleted,
    ensure_node_gres_configured,
    gres_script,
    read_node,
)

DROP_IN_DIRECTORY = "/etc/systemd/system/slurmd.service.d"
DROP_IN = f"{DROP_IN_DIRECTORY}/gpuaas.conf"


def start_script(*, controller_address: str, shape: NodeShape) -> str:
    gpus = ",".join(shape.gpus) or "none"
    return "\n".join(
        [
            PMIX_LINK,
            f"mkdir -p {DROP_IN_DIRECTORY}",
            put_file(DROP_IN, render_slurmd_unit(controller_address=controller_address, shape=shape)),
            # A GPU that appeared or went is a reason to start slurmd anew, as a changed file is.
            f'mkdir -p "$state"; echo {quoted(gpus)} >"$state/gpus"',
            f'ensure_unit_current slurmd.service {DROP_IN} "$state/gpus"',
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
    """gres.conf on the controller, slurmd on the worker, then the record in slurmctld: in this order."""
    shape = await read_node_shape(worker)
    if (await read_node(controller, worker.hostname)).refused_by_slurm:
        # The record keeps the refusal also when the cause is gone: begin anew.
        await worker.run_step(f"stop-slurmd-{worker.hostname}", step("systemctl stop slurmd.service"))
        await ensure_node_deleted(controller, worker.hostname)
    start = start_script(controller_address=controller.address, shape=shape)
    registered = registered_script(host=worker.hostname, comment=comment)
    if worker.allocation_id == controller.allocation_id:
        # One machine, one round trip.
        script = step(gres_script(worker.hostname, shape.gpus), start, registered)
        result = await worker.run_step(f"join-worker-{worker.hostname}", script)
    else:
        await ensure_node_gres_configured(controller, worker.hostname, shape.gpus)
        await worker.run_step(f"start-slurmd-{worker.hostname}", step(start))
        result = await controller.run_step(f"register-node-{worker.hostname}", step(registered))
    return dict(line.split("=", 1) for line in result.stdout.splitlines() if "=" in line)
