"""How to get onto a cluster and what to type there, with this cluster's real names."""

from gpuaas_contract.instances import AccessNote
from gpuaas_sdk import OperationContext
from slurm_app.reconcilers.cluster import Cluster


async def access_notes(operation: OperationContext, cluster: Cluster) -> list[AccessNote]:
    machine = await operation.client.allocations.get(cluster.controller.allocation_id)
    partition = cluster.instance.inputs["partition"]

    def on_cluster(title: str, words: str) -> AccessNote:
        return AccessNote(title=title, command=f"gpuaas ssh {machine.name} -- {words}")

    notes = [
        AccessNote(title="Log in", command=f"gpuaas ssh {machine.name}"),
        on_cluster("See the nodes", "sinfo"),
        on_cluster("Run a command", f"srun --partition={partition} hostname"),
        on_cluster("Submit a batch job", f"sbatch --partition={partition} --wrap=hostname"),
        on_cluster("See what ran", "sacct --allocations"),
    ]
    if machine.shape.gpus:
        notes.append(on_cluster("Run on a GPU", f"srun --partition={partition} --gres=gpu:1 env"))
    return [
        *notes,
        on_cluster("Ask the scheduler how it is", "scontrol ping"),
        AccessNote(title="Configuration", text="/etc/slurm/slurm.conf on the controller"),
        AccessNote(title="Logs", text="/var/log/slurm on every machine"),
    ]
