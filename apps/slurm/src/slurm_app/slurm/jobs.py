"""The first jobs: the proof that the cluster is usable."""

import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from gpuaas_sdk import CommandError, CommandResult, Machine, parse_values
from slurm_app import names
from slurm_app.errors import NotReadyError
from slurm_app.slurm import limit_probe
from slurm_app.slurm.script import quoted, step

JOB_NAME = "gpuaas-first-job"
NO_PROLOG = "its Prolog has made no"
MOST_NUMBERS_AGAIN = 10
SECONDS_PER_JOB = 60
_BATCH = "scontrol update jobid=$SLURM_JOB_ID comment=ran-on-$(hostname)"


@dataclass(frozen=True, slots=True)
class FirstJob:
    """The hosts where srun ran, the batch job that finished, and its row in sacct."""

    srun_hosts: tuple[str, ...]
    gpus_visible: int
    batch_job_id: int
    batch_state: str
    batch_elapsed: str
    account: str
    batch_output: str = ""
    limits: limit_probe.Verdict | None = None

    def as_evidence(self) -> dict[str, Any]:
        evidence = asdict(self)
        return {**evidence, "srun_hosts": list(self.srun_hosts)}


def first_job_script(*, user: str, partition: str, account: str, workers: tuple[str, ...], gpus: int) -> str:
    """Every command has a limit of its own: srun waits for ever on a node that is drained.

    srun gets its nodes at once, but a batch job waits for slurmctld's next round, one in a second. So the batch job is
    handed in as soon as the last srun has its nodes, and not before: srun would wait behind it.

    A slurmctld that was killed gives numbers of jobs once more, and sacct shows the old row until slurmdbd has heard of
    the new job: a job is known by its number and the time when it was handed in.
    """
    partition = names.partition_name(partition)
    account = names.account_name(account)
    where = quoted(f"--partition={partition}", f"--account={account}", "--time=1", f"--job-name={JOB_NAME}")
    nodes = f"--nodes={len(workers)} --ntasks-per-node=1 --nodelist={','.join(map(names.host_name, workers))}"
    limit = f"timeout --kill-after=5 {SECONDS_PER_JOB}"
    interactive = [f"as_user srun {where} {nodes} sh -c 'echo host=$(hostname)'"]
    if gpus:
        # The variable is what CUDA programs obey; it is set by Slurm from the GPUs that the job was given.
        interactive.append(
            f"as_user srun {where} --nodes=1 --ntasks=1 --nodelist={names.host_name(workers[0])} "
            f"--gres=gpu:{int(gpus)} sh -c 'echo \"gpus=$CUDA_VISIBLE_DEVICES\"'"
        )
    pieces = [
        "cd /",
        f'as_user() {{ runuser --user {quoted(names.user_name(user))} -- {limit} "$@"; }}',
        *interactive[:-1],
        f"{interactive[-1]} & srun=$!",
        f"mine() {{ timeout 10 squeue --noheader --name={JOB_NAME} --states=RUNNING --format=%A; }}",
        'has_its_nodes() { ! kill -0 "$srun" || [ -n "$(mine)" ]; }',
        f"wait_for {SECONDS_PER_JOB} 'srun to get its nodes' has_its_nodes",
        "since=$(date +%FT%T)",
        # Its output is on a worker; what it does to its own record can be read here.
        f"job=$(as_user sbatch --parsable {where} {nodes} --output=/dev/null --wrap={quoted(_BATCH)})",
        'wait "$srun" || { timeout 10 scancel "$job"; exit 1; }',
        # While the batch job is on its way into sacct.
        limit_probe.probe_script(where=where, nodes=nodes),
        'row() { timeout 10 sacct --allocations --noheader --parsable2 --jobs="$job" '
        """--format=jobid,state,elapsed,account,submit | awk -F '|' -v since="$since" """
        """'$5 >= since { print $1 "|" $2 "|" $3 "|" $4 }'; }""",
        "finished() { row | grep -Eq '\\|(COMPLETED|FAILED|CANCELLED|TIMEOUT|NODE_FAIL|OUT_OF_MEMORY)'; }",
        f'wait_for {SECONDS_PER_JOB} "the sacct row of job $job" finished',
        "row | sed 's/^/row=/'",
        'timeout 10 scontrol show job "$job" | sed -n "s/^ *Comment=ran-on-/ran=/p"',
    ]
    return step(*pieces)


def parse_first_job(text: str) -> FirstJob:
    values = parse_values(text)
    gpus = len([number for said in values.get("gpus", []) for number in said.split(",") if number])
    row = values.get("row", [""])[-1].split("|")
    if len(row) != 4 or not row[0].isdigit():
        raise NotReadyError("first_job_unclear", f"cannot read the result of the first job: {text[-500:]!r}")
    ran = values.get("ran", [""])[-1].strip()
    return FirstJob(tuple(sorted(values.get("host", []))), gpus, int(row[0]), row[1], row[2], row[3], ran)


def refuse_failed(job: FirstJob, *, workers: tuple[str, ...], gpus: int) -> None:
    problems = []
    if sorted(job.srun_hosts) != sorted(workers):
        problems.append(f"srun answered from {list(job.srun_hosts)}, not from {list(workers)}")
    if job.gpus_visible != gpus:
        problems.append(f"a job saw {job.gpus_visible} of {gpus} GPUs")
    if job.batch_state != "COMPLETED":
        problems.append(f"batch job {job.batch_job_id} ended as {job.batch_state}")
    elif job.batch_output not in workers:
        # A launch that failed can look like success.
        problems.append(f"batch job {job.batch_job_id} ended as COMPLETED and has done nothing")
    if problems:
        seen = json.dumps(job.as_evidence())
        raise NotReadyError("first_job_failed", f"the first job did not succeed: {'; '.join(problems)}; {seen}")


async def run_first_job(
    controller: Machine, *, user: str, partition: str, account: str, workers: tuple[str, ...], gpus: int
) -> FirstJob:
    """srun over all workers, a GPU job where there are GPUs, and sbatch until its row in sacct."""
    script = first_job_script(user=user, partition=partition, account=account, workers=workers, gpus=gpus)
    result = await _run(controller, script)
    job = parse_first_job(result.stdout)
    refuse_failed(job, workers=workers, gpus=gpus)
    return replace(job, limits=limit_probe.judge(result.stdout, workers))


async def _run(controller: Machine, script: str) -> CommandResult:
    """Run it again where its number was used before: a slurmctld that was killed gives out its last numbers once more,
    and slurmd runs no Prolog for a job that it takes for one of those, which the plug-in then refuses."""
    steps = ["run-first-job", *(f"run-first-job-{number}" for number in range(2, MOST_NUMBERS_AGAIN + 1))]
    for name in steps[:-1]:
        try:
            return await controller.run_step(name, script, timeout=4 * SECONDS_PER_JOB)
        except CommandError as error:
            if NO_PROLOG not in error.result.stderr:
                raise
    return await controller.run_step(steps[-1], script, timeout=4 * SECONDS_PER_JOB)
