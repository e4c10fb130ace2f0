"""Joining a worker: slurmd on its machine, and its record in slurmctld, from whatever state both are in."""

import asyncio
from collections.abc import Sequence

from gpuaas_sdk import CommandError, Machine
from slurm_app.errors import NotReadyError
from slurm_app.slurm import munge, nodes, slurmd
from slurm_app.slurm.facts import read_node_shape
from slurm_app.slurm.script import step


async def ensure_worker_joined(
    controller: Machine, worker: Machine, *, comment: str, features: Sequence[str] = (), fit_memory: bool = True
) -> dict[str, str]:
    """Start slurmd on the worker, then wait for its record in slurmctld. No other machine is touched."""
    host = worker.hostname
    shape, record = await asyncio.gather(
        read_node_shape(worker, controller_address=controller.address), nodes.read_node(controller, host)
    )
    nodes.refuse_held(host, record)
    other_gpus = record.present == "yes" and record.gpus != len(shape.gpus)
    if other_gpus and (running := await nodes.read_jobs(controller, host)):
        raise NotReadyError(
            "gpus_changed",
            f"{host} has {len(shape.gpus)} GPUs and joined with {record.gpus}, while jobs run there: {running[0]}. "
            "Drain it, then recover it",
        )
    if record.refused_by_slurm or other_gpus:
        # slurmctld refuses a node with fewer GPUs than its record has, and the record keeps the refusal also when
        # the cause is gone: begin anew.
        await worker.run_step(f"stop-slurmd-{host}", step(f"systemctl stop {slurmd.UNIT}"))
        await nodes.ensure_node_deleted(controller, host)
        record = await nodes.read_node(controller, host)
    if record.present == "yes" and record.reason.startswith(nodes.OWN_PREFIX):
        await nodes.ensure_resumed(controller, host)
    anew = record.present == "no" or (record.present == "yes" and not record.responding)
    start = slurmd.start_script(shape=shape, conf_server=controller.address, features=features, anew=anew)
    registered = slurmd.registered_script(host=host, comment=comment, fit_memory=fit_memory)
    if worker.allocation_id == controller.allocation_id:
        # One machine, one round trip.
        result = await worker.run_step(f"join-worker-{host}", step(start, registered))
    else:
        try:
            await worker.run_step(f"start-slurmd-{host}", step(start))
            result = await controller.run_step(f"register-node-{host}", step(registered))
        except CommandError:
            if refusal := await munge.read_refusal(worker, controller):
                raise NotReadyError(refusal.code, f"{host} cannot join: {refusal.detail}") from None
            raise
    return result.values
