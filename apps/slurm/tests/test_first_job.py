"""The script of the first job, run by bash with stand-ins for Slurm's commands."""

import os
import subprocess
from pathlib import Path

import pytest

from gpuaas_sdk import CommandError, CommandResult
from gpuaas_sdk.testing import FakeMachine
from slurm_app.slurm import jobs

from .answers import said

# The number of the job was given before, to one that has ended: slurmctld was killed, and forgot it.
SACCT = """#!/bin/bash
echo asked >>"$HOME/asked"
case $(wc -l <"$HOME/asked") in
    1) echo '16|COMPLETED|00:00:07|proj|2020-01-01T00:00:00' ;;
    2) echo "16|PENDING|00:00:00|proj|$(date +%FT%T)" ;;
    *) echo "16|COMPLETED|00:00:01|proj|$(date +%FT%T)" ;;
esac
"""
STAND_INS = {
    "runuser": '#!/bin/bash\nwhile [ "$1" != -- ]; do shift; done; shift; exec "$@"\n',
    "srun": "#!/bin/bash\necho host=node-1\n",
    "sbatch": "#!/bin/bash\necho 16\n",
    "squeue": "#!/bin/bash\necho 15\n",
    "sacct": SACCT,
    "scontrol": "#!/bin/bash\necho '   Comment=ran-on-node-1 '\n",
}


def test_the_row_of_an_older_job_of_that_number_is_not_taken_for_its_own(tmp_path: Path) -> None:
    for name, text in STAND_INS.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    script = jobs.first_job_script(user="gpuaas", partition="main", account="proj", workers=("node-1",), gpus=0)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    done = subprocess.run(
        ["bash", "-c", f"set -euo pipefail\n{script}"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    job = jobs.parse_first_job(done.stdout)
    assert (job.batch_job_id, job.batch_state, job.batch_elapsed) == (16, "COMPLETED", "00:00:01")
    assert job.batch_output == "node-1"


async def test_a_number_that_comes_again_is_not_taken_for_a_broken_worker() -> None:
    refused = CommandResult(1, "", "slurmstepd-a: error: cannot limit this job: its Prolog has made no /run/x/19: …")
    machine = FakeMachine(answers={"run-first-job-3": said("host=a\nrow=21|COMPLETED|00:00:01|proj\nran=a\n")})
    machine.answers["run-first-job"] = refused
    await jobs.run_first_job(machine, user="gpuaas", partition="main", account="proj", workers=("a",), gpus=0)
    assert [*machine.steps] == ["run-first-job", "run-first-job-2", "run-first-job-3"]
    machine.answers["run-first-job"] = CommandResult(1, "", "srun: error: it is broken")
    with pytest.raises(CommandError, match="it is broken"):
        await jobs.run_first_job(machine, user="gpuaas", partition="main", account="proj", workers=("a",), gpus=0)
