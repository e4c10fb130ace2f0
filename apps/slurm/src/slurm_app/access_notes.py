"""How to get onto a cluster and what to type there, with this cluster's real names. Every command can be pasted."""

from gpuaas_contract.access import PERSON_LOGIN
from gpuaas_contract.allocations import Allocation
from gpuaas_contract.instances import AccessNote
from gpuaas_sdk import OperationContext
from slurm_app.reconcilers.cluster import Cluster
from slurm_app.slurm import nodes
from slurm_app.slurm.config import LOGS


async def access_notes(operation: OperationContext, cluster: Cluster) -> list[AccessNote]:
    """Ask slurmctld for the present nodes: workers come and go."""
    head = await operation.client.allocations.get(cluster.controller.allocation_id)
    present = await nodes.read_nodes(operation.machine(cluster.controller.allocation_id))
    gpus = any(node.gpus for node in present.values())
    mpi = bool(cluster.instance.inputs.get("mpi"))
    return notes_for(log_in_notes(head), cluster.partition, cluster.account, sorted(present), gpus=gpus, mpi=mpi)


async def refresh_access_notes(operation: OperationContext, cluster: Cluster) -> None:
    await operation.report_instance(access_notes=await access_notes(operation, cluster))


def log_in_notes(head: Allocation) -> list[AccessNote]:
    """Say how to log in, the plain login first. The platform has no way for people onto an external machine: they use
    their own."""
    if (external := head.shape.external) is not None:
        port = "" if external.port == 22 else f"-p {external.port} "
        return [
            AccessNote(title="Log in with a key of your own", command=f"ssh {port}{PERSON_LOGIN}@{external.address}")
        ]
    return [
        AccessNote(title="Log in", command=f"gpuaas ssh {head.name}"),
        AccessNote(title="Let plain ssh, scp and rsync reach it", command=f"gpuaas ssh-config {head.name}"),
        AccessNote(title="Then log in with plain ssh", command=f"ssh {head.name}.gpuaas"),
    ]


def notes_for(
    log_in: list[AccessNote], partition: str, account: str, workers: list[str], *, gpus: bool, mpi: bool
) -> list[AccessNote]:
    def on_cluster(title: str, words: str, text: str = "") -> AccessNote:
        return AccessNote(title=title, command=f"{log_in[0].command} -- {words}", text=text)

    where = f"--partition={partition}"
    many = f"--nodes={len(workers)}"
    rank = "python3 -m mpi4py.bench helloworld" if mpi else "printenv PMIX_RANK"
    notes = [
        *log_in,
        on_cluster("See the nodes", "sinfo --Node --long", f"The workers are {', '.join(workers)}."),
        on_cluster("Run a command on every worker", f"srun {where} {many} hostname"),
        on_cluster("Submit a batch job", f"sbatch {where} --account={account} --wrap=hostname"),
        on_cluster("Submit an array of jobs", f"sbatch {where} --array=1-4 --wrap=hostname"),
        on_cluster("See what waits and runs", "squeue --long"),
        on_cluster("See what ran", "sacct --allocations --format=jobid,jobname,state,elapsed,nodelist,alloctres"),
        on_cluster("Run an MPI program", f"srun {where} {many} --mpi=pmix {rank}"),
    ]
    if gpus:
        notes.append(on_cluster("Run on a GPU", f"srun {where} --gres=gpu:1 printenv CUDA_VISIBLE_DEVICES"))
    return [
        *notes,
        on_cluster("Ask the scheduler how it is", "scontrol ping"),
        on_cluster("Ask why a node does not work", "sinfo --list-reasons"),
        on_cluster("See that accounting answers", f"sacctmgr --noheader show associations account={account}"),
        on_cluster("Read the scheduler's log", f"sudo tail -n 20 {LOGS}/slurmctld.log"),
        AccessNote(
            title="Configuration",
            text="/etc/slurm/slurm.conf on the controller; workers fetch it from there, into /run/slurm/conf",
        ),
        AccessNote(title="Logs", text=f"{LOGS} on every machine"),
    ]
