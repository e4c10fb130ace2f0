"""A cluster over several real slices, by the shipped reconcilers: workers that come, go, fail and return.

Each test finds the cluster as the deploy left it: it goes back to a snapshot where the test before left it otherwise.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from gpuaas_contract.instances import MemberStatus
from gpuaas_contract.operations import Operation
from gpuaas_sdk import OperationFailed
from gpuaas_sdk.machines.base import CommandResult, MachineUnreachableError
from slurm_app.slurm import logs, munge, nodes
from slurm_app.slurm.owned import NEEDED_PARTS, RECORD
from slurm_app.slurm.receipt import read_receipt

from . import faketime
from .kept_cluster import Cluster, read_pids
from .lxc_machine import LxcMachine, add_gpu, lxc, read_dpkg_status, wait_until_running
from .memory_platform import CONTROLLER, WORKER, MemoryPlatform, evidence_of
from .real_machine import assert_clean, wait_for
from .slices import Slices

pytestmark = [pytest.mark.machines, pytest.mark.asyncio(loop_scope="session")]

# From before there is a slurmctld until the cluster is ready: every answer that a submission got.
SUBMIT_FOR_EVER = """
cd /
until command -v sbatch >/dev/null; do sleep 0.05; done
accepted=0
while [ "$accepted" -lt 5 ]; do
    if said=$(timeout 10 runuser -u gpuaas -- sbatch --parsable --output=/dev/null --wrap=true 2>&1); then
        accepted=$((accepted + 1))
        echo "accepted $said"
        timeout 10 squeue --noheader --format='reason %r' --jobs="$said" 2>/dev/null || true
    else
        echo "refused $said"
    fi
    sleep 0.05
done
"""


class Split(Cluster):
    @property
    def one(self) -> LxcMachine:
        return self.workers[0]

    @property
    def two(self) -> LxcMachine:
        return self.workers[1]


@dataclass
class Deployed:
    cluster: Split
    operation: Operation
    answers: list[str]
    """To the jobs that were submitted meanwhile."""
    errors: dict[str, list[str]]
    """In the logs of each machine, right after the deploy."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def deployed(slices: Slices) -> AsyncIterator[Deployed]:
    """Cold: the machines have nothing, and the deploy installs each as its role needs it."""
    head, one, two = [await slices.get(word, gpus=gpus) for word, gpus in (("head", 0), ("one", 2), ("two", 1))]
    cluster = Split(slices, await slices.digest(head), head, (one, two))
    submissions = asyncio.create_task(head.read(SUBMIT_FOR_EVER, timeout=300))
    operation = await cluster.platform.deploy()
    answers = (await submissions).stdout.splitlines()
    errors = {machine.hostname: await logs.read_unexpected_errors(machine) for machine in cluster.machines}
    await cluster.keep()
    yield Deployed(cluster, operation, answers, errors)
    await cluster.rest()


@pytest_asyncio.fixture(loop_scope="session")
async def cluster(deployed: Deployed, has_failed: Callable[[], bool]) -> AsyncIterator[Split]:
    await deployed.cluster.ensure_as_kept()
    yield deployed.cluster
    deployed.cluster.spoiled = has_failed()


@pytest_asyncio.fixture(loop_scope="session")
async def without_two(deployed: Deployed, has_failed: Callable[[], bool]) -> AsyncIterator[Split]:
    await deployed.cluster.ensure_without(deployed.cluster.two)
    yield deployed.cluster
    deployed.cluster.spoiled = has_failed()


@pytest_asyncio.fixture(loop_scope="session")
async def decommissioned(deployed: Deployed, has_failed: Callable[[], bool]) -> AsyncIterator[Split]:
    await deployed.cluster.ensure_decommissioned()
    yield deployed.cluster
    deployed.cluster.spoiled = has_failed()


def seconds(text: str, pattern: str) -> int:
    found = re.search(pattern, text)
    assert found, text
    return int(found[1])


async def test_controller_and_workers_on_machines_of_their_own(deployed: Deployed) -> None:
    """And no job ever sees InvalidAccount, from the first moment that anything can be submitted."""
    job, cluster = deployed.operation.result["first_job"], deployed.cluster
    hosts = sorted([cluster.one.hostname, cluster.two.hostname])
    assert (job["srun_hosts"], job["gpus_visible"], job["batch_state"]) == (hosts, 2, "COMPLETED")
    accepted = [line for line in deployed.answers if line.startswith("accepted")]
    assert accepted, deployed.answers[-5:]
    assert not [line for line in deployed.answers if "InvalidAccount" in line or "nvalid account" in line]


async def test_each_machine_has_only_what_its_role_needs(deployed: Deployed, cluster: Split) -> None:
    installed = "dpkg-query -W -f '${Package}\\n' 'slurm*' mariadb-server-core 2>/dev/null || true"
    head = set((await cluster.head.read(installed)).stdout.split())
    worker = set((await cluster.one.read(installed)).stdout.split())
    assert ("slurmd" in head, "slurmctld" in head, "mariadb-server-core" in head) == (False, True, True)
    assert ("slurmd" in worker, "slurmctld" in worker, "mariadb-server-core" in worker) == (True, False, False)
    # Its configuration comes from slurmctld; the one file of its own says which GPUs it has.
    assert (await cluster.one.read("ls /etc/slurm/*.conf")).stdout.split()[0] == "/etc/slurm/gres.machine.conf"
    assert not (await cluster.one.read("test -e /etc/slurm/slurm.conf")).ok
    assert deployed.errors == {machine.hostname: [] for machine in cluster.machines}


async def test_a_busy_worker_is_proven_by_the_jobs_of_others(cluster: Split) -> None:
    job = await cluster.submit(cluster.two)
    operation = await cluster.run("recover", cluster.two)
    assert evidence_of(operation)["run-first-job"]["busy"][0].startswith(f"{job} gpuaas RUNNING")
    assert await cluster.state_of(job) == "RUNNING"
    await cluster.cancel(job)


async def test_one_job_over_all_workers(cluster: Split) -> None:
    run_all = (
        "cd /; runuser -u gpuaas -- timeout 30 srun --mpi=pmix -N2 --gres=gpu:1 sh -c 'hostname; echo r$PMIX_RANK'"
    )
    result = await cluster.head.read(run_all)
    assert result.ok, result.stderr
    names = {cluster.one.hostname, cluster.two.hostname}
    assert set(result.stdout.split()) == {*names, "r0", "r1"}


async def test_drain_waits_for_jobs_and_resume_takes_it_back(cluster: Split) -> None:
    job = await cluster.submit(cluster.one)
    with pytest.raises(OperationFailed, match="1 jobs still run"):
        await cluster.run("drain", cluster.one, timeout_seconds=1)
    assert evidence_of(cluster.platform.last)["drain-node"]["jobs"][0].startswith(f"{job} gpuaas RUNNING")
    assert await cluster.state_of(job) == "RUNNING"
    assert cluster.worker(cluster.one).status == MemberStatus.DRAINING
    waiting = asyncio.create_task(cluster.run("drain", cluster.one, timeout_seconds=60))
    await cluster.cancel(job)
    assert (await waiting).result["drained"]["forced"] is False
    assert cluster.worker(cluster.one).status == MemberStatus.DRAINED
    await cluster.run("resume", cluster.one)
    assert not {"DRAIN", "DOWN"} & (await nodes.read_node(cluster.head, cluster.one.hostname)).state
    assert cluster.worker(cluster.one).status == MemberStatus.READY


async def test_force_ends_the_jobs_and_takes_a_confirmation(cluster: Split) -> None:
    host = cluster.one.hostname
    with pytest.raises(OperationFailed, match="confirm"):
        await cluster.run("drain", cluster.one, force=True, confirm="another")
    job = await cluster.submit(cluster.one)
    forced = await cluster.run("drain", cluster.one, force=True, confirm=host, timeout_seconds=1)
    assert forced.result["drained"]["forced"] is True
    assert await cluster.state_of(job) == ""
    await cluster.run("resume", cluster.one)
    assert "DRAIN" not in (await nodes.read_node(cluster.head, host)).state


async def test_a_persons_drain_is_kept_with_its_words(cluster: Split) -> None:
    host = cluster.one.hostname
    assert (await cluster.head.read(f"scontrol update nodename={host} state=DRAIN reason='fan is loud'")).ok
    await cluster.run("drain", cluster.one, timeout_seconds=10)
    with pytest.raises(OperationFailed, match="fan is loud"):
        await cluster.run("resume", cluster.one)
    record = await nodes.read_node(cluster.head, host)
    assert ("DRAIN" in record.state, record.reason, record.reason_by) == (True, "fan is loud", "root")
    assert (await cluster.head.read(f"scontrol update nodename={host} state=RESUME")).ok
    await cluster.run("resume", cluster.one)


async def test_a_forgotten_node_is_made_to_register_again(cluster: Split) -> None:
    """Its record was lost, and a slurmd that runs does not register a second time by itself."""
    assert (await cluster.head.read(f"scontrol delete nodename={cluster.two.hostname}")).ok
    assert cluster.two.hostname not in await cluster.states()
    await cluster.run("recover", cluster.two)
    assert (await cluster.states())[cluster.two.hostname] == "idle"


async def test_a_munged_with_a_wrong_clock_is_named_with_the_difference(cluster: Split, tmp_path: Path) -> None:
    """Its own clock alone, by libfaketime: the machine's clock is right, so that no look at the machine finds it."""
    status = tmp_path / "status"
    status.write_text(await read_dpkg_status(cluster.two.hostname))
    await faketime.install_library(cluster.two, faketime.fetch_library(status))
    await faketime.set_clock_of(cluster.two, "munge.service", "-2h")
    late = await munge.read_refusal(cluster.two, cluster.head)
    assert late is not None
    assert (late.code, "Expired credential" in late.detail) == ("clock_skew", True), late
    assert seconds(late.detail, f"{cluster.two.hostname} is (.+) s behind that on {cluster.head.hostname}") >= 7_200
    await faketime.set_clock_of(cluster.two, "munge.service", "+1h")
    assert (await cluster.head.read(f"scontrol delete nodename={cluster.two.hostname}")).ok
    with pytest.raises(OperationFailed, match="Rewound credential") as caught:
        await cluster.run("recover", cluster.two)
    assert caught.value.code == "clock_skew"
    ahead = f"{cluster.two.hostname} is (.+) s ahead of that on {cluster.head.hostname}"
    # Less than set, by what passes between the two machines.
    assert 3_000 < seconds(caught.value.detail, ahead) <= 3_600
    await faketime.put_clock_right(cluster.two, "munge.service")
    await faketime.remove_library(cluster.two)
    assert await munge.read_refusal(cluster.two, cluster.head) is None
    await cluster.run("recover", cluster.two)
    assert (await cluster.states())[cluster.two.hostname] == "idle"


async def test_a_worker_with_fewer_gpus_than_before_is_recovered(cluster: Split) -> None:
    name = cluster.two.hostname
    assert (await lxc("config", "device", "remove", name, "nvidia0")).ok
    operation = await cluster.run("recover", cluster.two)
    assert evidence_of(operation)["run-first-job"]["gpus_visible"] == 0
    assert (await nodes.read_node(cluster.head, name)).gpus == 0
    await add_gpu(name, 0)
    operation = await cluster.run("recover", cluster.two)
    assert evidence_of(operation)["run-first-job"]["gpus_visible"] == 1


async def test_a_restart_of_a_workers_machine_is_survived(cluster: Split) -> None:
    assert (await lxc("restart", "--force", cluster.two.hostname)).ok
    await wait_until_running(cluster.two.hostname)
    await cluster.wait_until_idle()
    await cluster.run("recover", cluster.two)


async def test_a_silent_node_is_unknown_and_never_drained(cluster: Split) -> None:
    """Its slurmd is away, and the job that it started runs on: that is what taking unknown for drained would kill."""
    host = cluster.two.hostname
    job = await cluster.submit(cluster.two, "sleep 1234")
    assert (await cluster.two.read("systemctl stop slurmd.service")).ok
    silent = f"timeout 10 scontrol --oneliner show node {host} | grep -q NOT_RESPONDING"
    await wait_for(cluster.head, "slurmctld to miss the worker", silent, seconds=120)
    with pytest.raises(OperationFailed) as caught:
        await cluster.run("drain", cluster.two, timeout_seconds=1)
    assert caught.value.code == "node_unknown"
    assert (await cluster.two.read("pgrep -f 'sleep 1234'")).ok
    await cluster.head.read(f"scancel {job}")
    await cluster.run("recover", cluster.two)
    assert (await cluster.states())[host] == "idle"


async def test_removing_a_worker_leaves_no_ghost_and_no_other_job_notices(cluster: Split) -> None:
    head, one, two = cluster.head, cluster.one, cluster.two
    run = f"cd /; runuser -u gpuaas -- timeout 30 srun --nodelist={two.hostname} printenv SLURM_JOB_ID"
    old_job = (await head.read(run)).stdout.strip()
    assert old_job.isdecimal(), f"no job ran on {two.hostname}: {old_job}"
    job = await cluster.submit(one)
    touched = len(one.steps)
    # Twice, as by the successor of a controller that died before it could say that it was done.
    await cluster.platform.run("remove", cluster.worker(two), {"timeout_seconds": 30}, outcome_lost=True)
    removed = await cluster.run("remove", two, timeout_seconds=30)
    assert_clean(removed.result)
    (found,) = removed.result["receipt"]["members"]
    assert any(check["check"] == "node_record" and check["ok"] for check in found["checks"])
    assert await cluster.states() == {one.hostname: "mixed"}
    assert len(one.steps) == touched
    # Its old jobs are still on record; slurmctld reads them back and goes on without the node.
    assert (await head.read("systemctl restart slurmctld.service")).ok
    await wait_for(head, "slurmctld to come back", "timeout 10 scontrol ping | grep -q 'is UP'")
    row = f"timeout 20 sacct --allusers --noheader --allocations --parsable2 --jobs={old_job} --format=nodelist,state"
    assert (await head.read(row)).stdout.strip() == f"{two.hostname}|COMPLETED"
    await wait_for(head, "the other worker to be there", "timeout 10 sinfo --noheader --format=%T | grep mixed")
    assert set(await cluster.states()) == {one.hostname}
    assert await cluster.state_of(job) == "RUNNING"
    await cluster.cancel(job)


async def test_a_worker_joins_while_a_job_runs_and_nothing_else_is_touched(without_two: Split) -> None:
    cluster, head, one, two = without_two, without_two.head, without_two.one, without_two.two
    job = await cluster.submit(one)
    (slurmctld,), (slurmd,) = await read_pids(head, "slurmctld"), await read_pids(one, "slurmd")
    touched = len(one.steps)
    cluster.platform.place(WORKER, two)
    joined = await cluster.run("add", two, features=["fast", "big.disk"])
    assert evidence_of(joined)["run-first-job"]["srun_hosts"] == [two.hostname]
    assert joined.result["joined"][two.hostname]["AvailableFeatures"] == "fast,big.disk"
    assert (await read_pids(head, "slurmctld"), await read_pids(one, "slurmd")) == ([slurmctld], [slurmd])
    assert len(one.steps) == touched
    assert await cluster.state_of(job) == "RUNNING"
    assert await logs.read_unexpected_errors(two) == []
    await cluster.wait_until_saved(job)
    # Killed right after: the record of the new node was saved all the same.
    assert (await head.read("systemctl kill --signal=KILL slurmctld.service")).ok
    back = f"timeout 10 scontrol ping | grep -q 'is UP' && test $(systemctl show -P MainPID slurmctld) != {slurmctld}"
    await wait_for(head, "slurmctld to come back", back, seconds=180)
    usable = f"timeout 10 sinfo --noheader --nodes={two.hostname} --format=%T | grep -x idle"
    await wait_for(head, "the new worker to be idle", usable, seconds=180)
    assert await cluster.state_of(job) == "RUNNING"
    await cluster.cancel(job)


async def test_a_worker_beside_the_controller_takes_over_and_goes(cluster: Split) -> None:
    head, two = cluster.head, cluster.two
    old, beside = cluster.worker(two), cluster.platform.place(WORKER, head)
    (slurmctld,) = await read_pids(head, "slurmctld")
    replaced = await cluster.platform.run("replace", old, {"timeout_seconds": 30}, replacement=beside)
    assert_clean(replaced.result)
    assert replaced.result["replaced_by"] == beside.id
    assert await cluster.states() == {cluster.one.hostname: "idle", head.hostname: "idle"}
    await cluster.slices.assert_as_before(two)
    removed = await cluster.run("remove", head, timeout_seconds=30)
    assert_clean(removed.result)
    assert await read_pids(head, "slurmctld") == [slurmctld]
    assert await cluster.states() == {cluster.one.hostname: "idle"}
    assert not (await head.read("dpkg-query -W -f '${db:Status-Status}' slurmd | grep -x installed")).ok
    # What the controller needs is still there: the receipt of the whole machine is not clean.
    assert {"packages", "processes", "users"} <= {check.check for check in (await read_receipt(head)).left}


class Silent(LxcMachine):
    """A machine that stopped answering."""

    async def read(self, script: str, *, timeout: float = 30) -> CommandResult:
        raise MachineUnreachableError(f"{self.hostname} did not answer")

    async def run_step(self, step: str, script: str, *, timeout: float = 300) -> CommandResult:
        raise MachineUnreachableError(f"{self.hostname} did not answer")


async def test_a_machine_that_lost_its_record_gets_it_back(cluster: Split) -> None:
    """Without it nobody could tell ours from theirs, and the removal that follows would find nothing to remove."""
    kept = await RECORD.read_copy(cluster.one)
    assert kept == await RECORD.read_copy(cluster.one)
    assert await RECORD.ensure_restored(cluster.one, kept, needed=NEEDED_PARTS) is False
    assert (await cluster.one.read("rm -rf /var/lib/gpuaas-slurm")).ok
    assert await RECORD.ensure_restored(cluster.one, kept, needed=NEEDED_PARTS) is True


async def test_decommission_says_what_it_could_not_verify_and_ends_when_it_can(cluster: Split) -> None:
    head, one, two = cluster.head, cluster.one, cluster.two
    cluster.platform.reach(Silent(two.hostname, two.address, {}))
    assert (await one.read("rm -rf /var/lib/gpuaas-slurm")).ok, "the app has a copy"
    with pytest.raises(OperationFailed) as caught:
        await cluster.run("decommission")
    assert caught.value.code == "teardown_unverified"
    receipts = {found["hostname"]: found for found in caught.value.result["receipt"]["members"]}
    assert receipts[head.hostname]["clean"]
    assert receipts[one.hostname]["clean"]
    assert all(check["ok"] is None for check in receipts[two.hostname]["checks"])
    cluster.platform.reach(two)
    assert_clean((await cluster.run("decommission")).result)
    for machine in cluster.machines:
        await cluster.slices.assert_as_before(machine)


async def test_redeploy_at_once_with_open_mpi(decommissioned: Split) -> None:
    slices, head, one = decommissioned.slices, decommissioned.head, decommissioned.one
    with_mpi = MemoryPlatform(slices.directory, await slices.digest(head), mpi=True)
    for component, machine in ((CONTROLLER, head), (WORKER, head), (WORKER, one)):
        with_mpi.place(component, machine)
    deploy = await with_mpi.deploy()
    assert deploy.result["first_job"]["srun_hosts"] == sorted([head.hostname, one.hostname])
    hello = "timeout 60 srun --mpi=pmix --nodes=2 --ntasks=2 python3 -m mpi4py.bench helloworld"
    result = await head.read(f"cd /; runuser -u gpuaas -- {hello}", timeout=90)
    assert result.ok, result.stderr
    ranks = sorted(line.split(" on ")[0] for line in result.stdout.splitlines())
    assert ranks == ["Hello, World! I am process 0 of 2", "Hello, World! I am process 1 of 2"]
    for machine in (head, one):
        assert await logs.read_unexpected_errors(machine) == []
    assert_clean((await with_mpi.run("decommission")).result)
    for machine in (head, one):
        await slices.assert_as_before(machine)
