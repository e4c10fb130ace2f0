"""Jobs that slurmctld calls RUNNING and that nobody runs: left by the restart of a machine, or of slurmctld.

BootTime in a container is the host's, so slurmctld sees no reboot: such a job holds its cores until its time is up. The
Prolog leaves a mark on each node of a job, which does not outlive the machine; a batch job also has its slurmstepd.
"""

import re
from dataclasses import dataclass

from gpuaas_sdk import Machine, ObservedMachine
from slurm_app import names
from slurm_app.errors import NotReadyError
from slurm_app.limits.package import DIRECTORY
from slurm_app.slurm.nodes import OWN_PREFIX, USABLE
from slurm_app.slurm.script import quoted, step

MARKS = "/run/gpuaas-slurm/jobs"
YOUNGEST_SECONDS = 15
"""Below that a job may still be starting."""
SHOWN = 5


@dataclass(frozen=True, slots=True)
class Running:
    job: int
    seconds: int
    batch_here: bool


def parse_elapsed(text: str) -> int:
    """`1-02:03:04`, `03:04`: seconds; 0 for what is none."""
    found = re.fullmatch(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)", text)
    if found is None:
        return 0
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def parse_running(text: str, host: str) -> list[Running]:
    found = []
    for line in text.splitlines():
        words = line.split()
        if len(words) == 4 and words[0].isdigit():
            found.append(Running(int(words[0]), parse_elapsed(words[1]), (words[2], words[3]) == ("1", host)))
    return found


async def read_running(controller: ObservedMachine, host: str) -> list[Running]:
    """Read the jobs that run on this node, as slurmctld sees it. The batch host of an allocation is where salloc was
    called, so the flag is read too."""
    command = (
        f"timeout 10 squeue --noheader --states=RUNNING --nodelist={quoted(names.host_name(host))} "
        "--Format=JobID:20,TimeUsed:20,BatchFlag:4,BatchHost:80"
    )
    result = await controller.read(command)
    if not result.ok:
        raise NotReadyError("slurmctld_unknown", f"cannot read the jobs on {host}: {result.stderr.strip()}")
    return parse_running(result.stdout, host)


async def read_phantoms(controller: ObservedMachine, worker: ObservedMachine) -> tuple[list[int], list[int]]:
    """Return the phantoms on this worker, and the other jobs there. Nothing is a phantom where there is no answer."""
    running = await read_running(controller, worker.hostname)
    old = [each for each in running if each.seconds >= YOUNGEST_SECONDS]
    if not old:
        return [], [each.job for each in running]
    marks = " ".join(f"{MARKS}/{each.job}" for each in old)
    # The process calls itself "slurmstepd: [12.batch]".
    result = await worker.read(
        f"if [ -d {DIRECTORY} ]; then echo marks=yes; fi\n"
        f"{{ ls -d {marks} 2>/dev/null || true; }} | sed 's#.*/#mark=#'\n"
        "ps -eo args= | sed -n 's/^slurmstepd: \\[\\([0-9]*\\)[.].*/daemon=\\1/p'\necho end=yes"
    )
    values = _lists(result.stdout)
    if not result.ok or "end" not in values:
        return [], [each.job for each in running]
    marked, daemons = values.get("mark", set()), values.get("daemon", set())
    phantoms = [
        each.job
        for each in old
        if str(each.job) not in daemons
        # Workers of clusters from before there were limits have no marks.
        and (each.batch_here or ("marks" in values and str(each.job) not in marked))
    ]
    # One that has ended between the two looks is none.
    still = {each.job for each in await read_running(controller, worker.hostname)} if phantoms else set()
    phantoms = [job for job in phantoms if job in still]
    return phantoms, [each.job for each in running if each.job not in phantoms]


def _lists(text: str) -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for line in text.splitlines():
        key, separator, value = line.partition("=")
        if separator:
            found.setdefault(key, set()).add(value)
    return found


def words_of(host: str, jobs: list[int]) -> str:
    shown = ", ".join(map(str, jobs[:SHOWN])) + (" and more" if len(jobs) > SHOWN else "")
    return f"{host} runs nothing of what slurmctld calls running there: job {shown}"


async def ensure_phantoms_ended(controller: Machine, host: str, jobs: list[int]) -> None:
    """Set the node down, at which slurmctld gives up its jobs and puts them back, and take it into service again."""
    host = names.host_name(host)
    reason = names.reason(f"{OWN_PREFIX} phantom jobs {' '.join(map(str, jobs[:SHOWN]))}")
    chosen = ",".join(map(str, jobs))
    script = step(
        f"timeout 10 scontrol update nodename={host} state=DOWN reason={quoted(reason)}",
        # It may be back in service by itself, which slurmctld does not let resume; or a person has it by now.
        f"node() {{ timeout 10 scontrol --oneliner show node {host}; }}",
        "resumed() {",
        "    local said",
        "    said=$(node) || return 1",
        f"    if grep -Eq ' State={USABLE} ' <<<\"$said\"; then return 0; fi",
        f"    if ! grep -q ' Reason={OWN_PREFIX}' <<<\"$said\"; then return 0; fi",
        f"    timeout 10 scontrol update nodename={host} state=RESUME",
        "}",
        f"wait_for 30 {quoted(f'node {host} to be in service again')} resumed",
        # A job that was put back waits for a while before it runs again.
        f"left() {{ timeout 10 squeue --noheader --states=RUNNING --nodelist={host} --jobs={chosen} --format=%A; }}",
        'ended() { [ -z "$(left 2>/dev/null)" ]; }',
        f"wait_for 30 {quoted(f'slurmctld to give up the phantom jobs of {host}')} ended",
    )
    await controller.run_step(f"end-phantoms-{host}", script)
