"""A cluster over several real slices: controller and workers apart, workers that come, go, fail and return.

The tests of this file share three slices and go in order, because an install is the expensive part.
"""

import asyncio
import os
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import faketime
import pytest
import pytest_asyncio
from lxc_machine import LxcMachine, lxc, read_dpkg_status, wait_until_running
from real_cluster import assert_clean, differences, everything, machines, run, wait_for

from gpuaas_sdk.machines.base import CommandResult, MachineUnreachableError
from slurm_app.decommission_phases import DECOMMISSION_PHASES, REMOVE_PHASES, TeardownIncompleteError
from slurm_app.draining import DrainWish, StillBusyError, ensure_drained
from slurm_app.errors import NotReadyError, RefusedError
from slurm_app.phases import DEPLOY_PHASES, FIT, WORKER_PHASES, WORKERS
from slurm_app.scope import Scope
from slurm_app.slurm import logs, munge, nodes
from slurm_app.slurm.receipt import read_receipt
from slurm_app.slurm.record import ensure_record_there, read_record
from slurm_app.slurm.roles import Role

pytestmark = [pytest.mark.machines, pytest.mark.asyncio(loop_scope="module")]

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


@dataclass
class Cluster:
    head: LxcMachine
    one: LxcMachine
    two: LxcMachine
    scope: Scope
    """The controller alone, and the first worker."""
    before: dict[str, set[str]]
    said: list[str] = field(default_factory=list)

    def worker(self, machine: LxcMachine, **changes: object) -> Scope:
        """As an operation on that worker sees it."""
        return replace(self.scope, workers=(machine,), targets=(machine,), **changes)  # type: ignore[arg-type]

    @property
    def all(self) -> Scope:
        return replace(self.scope, workers=(self.one, self.two))

    async def states(self) -> dict[str, str]:
        result = await self.head.read("timeout 10 sinfo --noheader --Node --format='%N %T'")
        assert result.ok, result.stderr
        return dict(line.split() for line in result.stdout.splitlines())

    async def submit(self, machine: LxcMachine, command: str = "sleep 1000") -> str:
        script = (
            f"cd /; runuser -u gpuaas -- sbatch --parsable --output=/dev/null --nodelist={machine.hostname} "
            f"--wrap='{command}'"
        )
        result = await self.head.read(script)
        assert result.ok, result.stderr
        job = result.stdout.strip()
        await wait_for(self.head, f"job {job} to run", f"squeue --noheader --jobs={job} --format=%T | grep -x RUNNING")
        return job

    async def state_of(self, job: str) -> str:
        return (await self.head.read(f"timeout 10 squeue --noheader --jobs={job} --format=%T || true")).stdout.strip()

    async def cancel(self, job: str) -> None:
        assert (await self.head.read(f"scancel {job}")).ok
        await wait_for(self.head, f"job {job} to end", f"! squeue --noheader --jobs={job} 2>/dev/null | grep -q .")


async def pid(machine: LxcMachine, unit: str) -> str:
    return (await machine.read(f"systemctl show --property=MainPID --value {unit}")).stdout.strip()


def seconds(text: str, pattern: str) -> int:
    found = re.search(pattern, text)
    assert found, text
    return int(found[1])


async def nothing_to_say(_: str) -> None:
    return None


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with machines(tmp_path_factory.mktemp("bundle"), {"head": 0, "one": 2, "two": 1}) as (found, digest):
        head, one, two = found["head"], found["one"], found["two"]
        scope = Scope("demo", "main", "proj", head, (one,), digest, munge_key=os.urandom(128))
        before = {machine.hostname: await everything(machine) for machine in found.values()}
        yield Cluster(head, one, two, scope, before)


async def test_controller_and_worker_on_two_machines(cluster: Cluster) -> None:
    """And no job ever sees InvalidAccount, from the first moment that anything can be submitted."""
    submissions = asyncio.create_task(cluster.head.read(SUBMIT_FOR_EVER, timeout=300))
    evidence = await run(DEPLOY_PHASES, cluster.scope, title="split deploy")
    job = evidence["run-first-job"]
    assert (job["srun_hosts"], job["gpus_visible"], job["batch_state"]) == ([cluster.one.hostname], 2, "COMPLETED")
    answers = (await submissions).stdout.splitlines()
    accepted = [line for line in answers if line.startswith("accepted")]
    assert accepted, answers[-5:]
    assert not [line for line in answers if "InvalidAccount" in line or "nvalid account" in line]


async def test_each_machine_has_only_what_its_role_needs(cluster: Cluster) -> None:
    installed = "dpkg-query -W -f '${Package}\\n' 'slurm*' mariadb-server-core 2>/dev/null || true"
    head = set((await cluster.head.read(installed)).stdout.split())
    worker = set((await cluster.one.read(installed)).stdout.split())
    assert ("slurmd" in head, "slurmctld" in head, "mariadb-server-core" in head) == (False, True, True)
    assert ("slurmd" in worker, "slurmctld" in worker, "mariadb-server-core" in worker) == (True, False, False)
    # Its configuration comes from slurmctld; the one file of its own says which GPUs it has.
    assert (await cluster.one.read("ls /etc/slurm/*.conf")).stdout.split()[0] == "/etc/slurm/gres.machine.conf"
    assert not (await cluster.one.read("test -e /etc/slurm/slurm.conf")).ok
    for machine in (cluster.head, cluster.one):
        assert await logs.read_unexpected_errors(machine) == []


async def test_a_worker_joins_while_a_job_runs_and_nothing_else_is_touched(cluster: Cluster) -> None:
    job = await cluster.submit(cluster.one)
    before = [await pid(cluster.head, "slurmctld"), await pid(cluster.one, "slurmd"), len(cluster.one.steps)]
    scope = cluster.worker(cluster.two, features=("fast", "big.disk"))
    evidence = await run(WORKER_PHASES, scope, title="add a worker")
    assert evidence["run-first-job"]["srun_hosts"] == [cluster.two.hostname]
    assert evidence["join-workers"][cluster.two.hostname]["AvailableFeatures"] == "fast,big.disk"
    assert [await pid(cluster.head, "slurmctld"), await pid(cluster.one, "slurmd"), len(cluster.one.steps)] == before
    assert await cluster.state_of(job) == "RUNNING"
    # Killed right after: the record of the new node was saved all the same.
    assert (await cluster.head.read("systemctl kill --signal=KILL slurmctld.service")).ok
    back = f"timeout 10 scontrol ping | grep -q 'is UP' && test $(systemctl show -P MainPID slurmctld) != {before[0]}"
    await wait_for(cluster.head, "slurmctld to come back", back, seconds=180)
    usable = f"timeout 10 sinfo --noheader --nodes={cluster.two.hostname} --format=%T | grep -x idle"
    await wait_for(cluster.head, "the new worker to be idle", usable, seconds=180)
    assert await cluster.state_of(job) == "RUNNING"
    await cluster.cancel(job)


async def test_a_worker_that_jobs_of_others_fill_at_once_is_proven_by_them(cluster: Cluster) -> None:
    job = await cluster.submit(cluster.two)
    evidence = await run(
        WORKER_PHASES, cluster.worker(cluster.two, features=("fast", "big.disk")), title="a busy worker"
    )
    assert evidence["run-first-job"]["busy"][0].startswith(f"{job} gpuaas RUNNING")
    assert await cluster.state_of(job) == "RUNNING"
    await cluster.cancel(job)


async def test_one_job_over_all_workers(cluster: Cluster) -> None:
    run_all = (
        "cd /; runuser -u gpuaas -- timeout 30 srun --mpi=pmix -N2 --gres=gpu:1 sh -c 'hostname; echo r$PMIX_RANK'"
    )
    result = await cluster.head.read(run_all)
    assert result.ok, result.stderr
    names = {cluster.one.hostname, cluster.two.hostname}
    assert set(result.stdout.split()) == {*names, "r0", "r1"}


async def test_drain_waits_for_jobs_and_resume_takes_it_back(cluster: Cluster) -> None:
    job = await cluster.submit(cluster.one)
    host = cluster.one.hostname
    with pytest.raises(StillBusyError, match="1 jobs still run") as caught:
        await ensure_drained(cluster.head, host, DrainWish(1, False, "test"), nothing_to_say)
    assert caught.value.evidence["jobs"][0].startswith(f"{job} gpuaas RUNNING")
    assert await cluster.state_of(job) == "RUNNING"
    waiting = asyncio.create_task(ensure_drained(cluster.head, host, DrainWish(60, False, "test"), nothing_to_say))
    await cluster.cancel(job)
    assert (await waiting)["forced"] is False
    record = await nodes.ensure_resumed(cluster.head, host)
    assert not {"DRAIN", "DOWN"} & record.state


async def test_force_ends_the_jobs_and_takes_a_confirmation(cluster: Cluster) -> None:
    host = cluster.one.hostname
    with pytest.raises(RefusedError, match="confirm"):
        DrainWish.of({"force": True, "confirm": "another"}, host, "test")
    job = await cluster.submit(cluster.one)
    wish = DrainWish.of({"force": True, "confirm": host, "timeout_seconds": 1}, host, "test")
    assert (await ensure_drained(cluster.head, host, wish, nothing_to_say))["forced"] is True
    assert await cluster.state_of(job) == ""
    assert "DRAIN" not in (await nodes.ensure_resumed(cluster.head, host)).state


async def test_a_persons_drain_is_kept_with_its_words(cluster: Cluster) -> None:
    host = cluster.one.hostname
    assert (await cluster.head.read(f"scontrol update nodename={host} state=DRAIN reason='fan is loud'")).ok
    await ensure_drained(cluster.head, host, DrainWish(10, False, "test"), nothing_to_say)
    with pytest.raises(RefusedError, match="fan is loud"):
        await nodes.ensure_resumed(cluster.head, host)
    record = await nodes.read_node(cluster.head, host)
    assert ("DRAIN" in record.state, record.reason, record.reason_by) == (True, "fan is loud", "root")
    assert (await cluster.head.read(f"scontrol update nodename={host} state=RESUME")).ok


async def test_a_forgotten_node_is_made_to_register_again(cluster: Cluster) -> None:
    """Its record was lost, and a slurmd that runs does not register a second time by itself."""
    assert (await cluster.head.read(f"scontrol delete nodename={cluster.two.hostname}")).ok
    assert cluster.two.hostname not in await cluster.states()
    await run(WORKER_PHASES, cluster.worker(cluster.two), title="recover a forgotten worker")
    assert (await cluster.states())[cluster.two.hostname] == "idle"


async def test_a_munged_with_a_wrong_clock_is_named_with_the_difference(cluster: Cluster, tmp_path: Path) -> None:
    """Its own clock alone, by libfaketime: the machine's clock is right, so that no look at the machine finds it."""
    status = tmp_path / "status"
    status.write_text(await read_dpkg_status(cluster.two.hostname))
    await faketime.install_library(cluster.two, faketime.fetch_library(status))
    try:
        await faketime.set_clock_of(cluster.two, "munge.service", "-2h")
        late = await munge.read_refusal(cluster.two, cluster.head)
        assert late is not None
        assert (late.code, "Expired credential" in late.detail) == ("clock_skew", True), late
        assert seconds(late.detail, f"{cluster.two.hostname} is (.+) s behind that on {cluster.head.hostname}") >= 7_200
        await faketime.set_clock_of(cluster.two, "munge.service", "+1h")
        assert (await cluster.head.read(f"scontrol delete nodename={cluster.two.hostname}")).ok
        await FIT.run(cluster.worker(cluster.two))
        with pytest.raises(NotReadyError, match="Rewound credential") as caught:
            await WORKERS.run(cluster.worker(cluster.two))
        assert caught.value.code == "clock_skew"
        ahead = f"{cluster.two.hostname} is (.+) s ahead of that on {cluster.head.hostname}"
        # Less than set, by what passes between the two machines.
        assert 3_000 < seconds(caught.value.detail, ahead) <= 3_600
    finally:
        await faketime.put_clock_right(cluster.two, "munge.service")
        await faketime.remove_library(cluster.two)
    assert await munge.read_refusal(cluster.two, cluster.head) is None
    await run(WORKER_PHASES, cluster.worker(cluster.two), title="recover with the right clock")
    assert (await cluster.states())[cluster.two.hostname] == "idle"


async def test_a_worker_with_fewer_gpus_than_before_is_recovered(cluster: Cluster) -> None:
    name = cluster.two.hostname
    assert (await lxc("config", "device", "remove", name, "nvidia0")).ok
    evidence = await run(WORKER_PHASES, cluster.worker(cluster.two), title="recover a worker with other GPUs")
    assert evidence["run-first-job"]["gpus_visible"] == 0
    assert (await nodes.read_node(cluster.head, name)).gpus == 0


async def test_a_restart_of_a_workers_machine_is_survived(cluster: Cluster) -> None:
    assert (await lxc("restart", "--force", cluster.two.hostname)).ok
    await wait_until_running(cluster.two.hostname)
    idle = f"timeout 10 sinfo --noheader --nodes={cluster.two.hostname} --format=%T | grep -x idle"
    await wait_for(cluster.head, "the worker to be idle", idle)
    await run(WORKER_PHASES, cluster.worker(cluster.two), title="after a restart of the worker's machine")


async def test_a_silent_node_is_unknown_and_never_drained(cluster: Cluster) -> None:
    """Its slurmd is away, and the job that it started runs on: that is what taking unknown for drained would kill."""
    host = cluster.two.hostname
    job = await cluster.submit(cluster.two, "sleep 1234")
    assert (await cluster.two.read("systemctl stop slurmd.service")).ok
    silent = f"timeout 10 scontrol --oneliner show node {host} | grep -q NOT_RESPONDING"
    await wait_for(cluster.head, "slurmctld to miss the worker", silent, seconds=120)
    with pytest.raises(StillBusyError) as caught:
        await ensure_drained(cluster.head, host, DrainWish(1, False, "test"), nothing_to_say)
    assert caught.value.code == "node_unknown"
    assert (await cluster.two.read("pgrep -f 'sleep 1234'")).ok
    await cluster.head.read(f"scancel {job}")
    await run(WORKER_PHASES, cluster.worker(cluster.two), title="recover a worker that was silent")
    assert (await cluster.states())[host] == "idle"


async def test_removing_a_worker_leaves_no_ghost_and_no_other_job_notices(cluster: Cluster) -> None:
    job = await cluster.submit(cluster.one)
    touched = len(cluster.one.steps)
    scope = cluster.worker(cluster.two)
    await ensure_drained(cluster.head, cluster.two.hostname, DrainWish(30, False, "remove"), nothing_to_say)
    evidence = await run(REMOVE_PHASES, scope, title="remove a worker")
    assert_clean(evidence)
    (found,) = evidence["prove-removal"]["receipts"]
    assert any(check["check"] == "node_record" and check["ok"] for check in found["checks"])
    assert await cluster.states() == {cluster.one.hostname: "mixed"}
    assert len(cluster.one.steps) == touched
    # Its old jobs are still on record; slurmctld reads them back and goes on without the node.
    assert (await cluster.head.read("systemctl restart slurmctld.service")).ok
    await wait_for(cluster.head, "slurmctld to come back", "timeout 10 scontrol ping | grep -q 'is UP'")
    rows = f"sacct --allusers --noheader --allocations --nodelist={cluster.two.hostname} --format=jobid | grep -q ."
    assert (await cluster.head.read(f"timeout 20 {rows}")).ok
    await wait_for(cluster.head, "the other worker to be there", "timeout 10 sinfo --noheader --format=%T | grep mixed")
    assert set(await cluster.states()) == {cluster.one.hostname}
    assert await cluster.state_of(job) == "RUNNING"
    await cluster.cancel(job)


async def test_remove_twice_and_add_the_same_machine_again(cluster: Cluster) -> None:
    assert_clean(await run(REMOVE_PHASES, cluster.worker(cluster.two), title="remove again"))
    await run(WORKER_PHASES, cluster.worker(cluster.two), title="add it again")
    assert (await cluster.states())[cluster.two.hostname] == "idle"
    assert await logs.read_unexpected_errors(cluster.two) == []


async def test_a_worker_comes_and_goes_beside_the_controller(cluster: Cluster) -> None:
    beside = cluster.worker(cluster.head)
    await run(WORKER_PHASES, beside, title="add a worker on the controller's machine")
    head = cluster.head.hostname
    assert (await cluster.states())[head] == "idle"
    slurmctld = await pid(cluster.head, "slurmctld")
    await ensure_drained(cluster.head, head, DrainWish(30, False, "remove"), nothing_to_say)
    leaving = replace(beside, staying={cluster.head.allocation_id: frozenset({Role.CONTROLLER})})
    evidence = await run(REMOVE_PHASES, leaving, title="remove the worker beside the controller")
    assert_clean(evidence)
    assert await pid(cluster.head, "slurmctld") == slurmctld
    assert set(await cluster.states()) == {cluster.one.hostname, cluster.two.hostname}
    assert not (await cluster.head.read("dpkg-query -W -f '${db:Status-Status}' slurmd | grep -x installed")).ok
    # What the controller needs is still there: the receipt of the whole machine is not clean.
    assert {"packages", "processes", "users"} <= {check.check for check in (await read_receipt(cluster.head)).left}
    assert (await cluster.states())[cluster.one.hostname] == "idle"


class Silent(LxcMachine):
    """A machine that stopped answering."""

    async def read(self, script: str, *, timeout: float = 30) -> CommandResult:
        raise MachineUnreachableError(f"{self.hostname} did not answer")

    async def run_step(self, step: str, script: str, *, timeout: float = 300) -> CommandResult:
        raise MachineUnreachableError(f"{self.hostname} did not answer")


async def test_a_machine_that_lost_its_record_gets_it_back(cluster: Cluster) -> None:
    """Without it nobody could tell ours from theirs, and the removal that follows would find nothing to remove."""
    kept = await read_record(cluster.one)
    assert kept == await read_record(cluster.one)
    assert await ensure_record_there(cluster.one, kept) is False
    assert (await cluster.one.read("rm -rf /var/lib/gpuaas-slurm")).ok
    assert await ensure_record_there(cluster.one, kept) is True


async def test_decommission_says_what_it_could_not_verify_and_ends_when_it_can(cluster: Cluster) -> None:
    silent = Silent(cluster.two.hostname, cluster.two.address, {})
    with pytest.raises(TeardownIncompleteError) as caught:
        await run(DECOMMISSION_PHASES, replace(cluster.all, workers=(cluster.one, silent)), title="one is silent")
    assert caught.value.code == "teardown_unverified"
    receipts = {found["hostname"]: found for found in caught.value.evidence["receipts"]}
    assert receipts[cluster.head.hostname]["clean"]
    assert receipts[cluster.one.hostname]["clean"]
    assert all(check["ok"] is None for check in receipts[cluster.two.hostname]["checks"])
    assert_clean(await run(DECOMMISSION_PHASES, cluster.all, title="now it answers"))
    for machine in (cluster.head, cluster.one, cluster.two):
        left = differences(cluster.before[machine.hostname], await everything(machine))
        assert [line for line in left if "nvidia0" not in line] == []


async def test_redeploy_at_once_with_open_mpi(cluster: Cluster) -> None:
    with_mpi = replace(cluster.all, mpi=True)
    evidence = await run(DEPLOY_PHASES, with_mpi, title="redeploy over three machines, with Open MPI")
    assert evidence["run-first-job"]["srun_hosts"] == sorted([cluster.one.hostname, cluster.two.hostname])
    hello = "timeout 60 srun --mpi=pmix --nodes=2 --ntasks=2 python3 -m mpi4py.bench helloworld"
    result = await cluster.head.read(f"cd /; runuser -u gpuaas -- {hello}", timeout=90)
    assert result.ok, result.stderr
    ranks = sorted(line.split(" on ")[0] for line in result.stdout.splitlines())
    assert ranks == ["Hello, World! I am process 0 of 2", "Hello, World! I am process 1 of 2"]
    for machine in (cluster.head, cluster.one, cluster.two):
        assert await logs.read_unexpected_errors(machine) == []
    assert_clean(await run(DECOMMISSION_PHASES, with_mpi, title="second decommission"))
    left = differences(cluster.before[cluster.one.hostname], await everything(cluster.one))
    assert left == []
