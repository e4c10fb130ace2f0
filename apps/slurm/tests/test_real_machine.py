"""A whole cluster on one real slice, by the shipped reconcilers: deploy, repeat, break, remove, compare, deploy again.

Each test finds the cluster as the deploy left it, or the slice bare: it goes back to a snapshot where the test before
left it otherwise.
"""

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from gpuaas_contract.operations import Operation
from gpuaas_sdk import OperationFailed
from gpuaas_sdk.machines.base import COPIED_ARTIFACTS
from slurm_app.slurm import facts, logs, nodes, quick_route
from slurm_app.slurm.owned import EVERYTHING
from slurm_app.slurm.receipt import read_receipt
from slurm_app.slurm.script import BASELINE

from .kept_cluster import Cluster, read_pids
from .lxc_machine import LxcMachine, lxc, wait_until_running
from .memory_platform import CONTROLLER, WORKER, MemoryPlatform, evidence_of
from .real_machine import assert_clean, differences, everything, wait_for
from .slices import BARE
from .victim import INSTALLED, Victim

pytestmark = [pytest.mark.machines, pytest.mark.asyncio(loop_scope="session")]

GPUS = 2
QUICK = "ip route show table local | grep quickack"


@dataclass
class Deployed:
    cluster: Cluster
    operation: Operation
    errors: list[str]
    """In the logs, right after the deploy."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def deployed(victim: Victim) -> AsyncIterator[Deployed]:
    cluster = Cluster(victim.slices, victim.digest, victim.machine, (victim.machine,))
    await victim.slices.go_back(victim.machine, INSTALLED, cluster)
    operation = await cluster.platform.deploy()
    errors = await logs.read_unexpected_errors(cluster.head)
    await cluster.keep()
    yield Deployed(cluster, operation, errors)
    await cluster.rest()


@pytest_asyncio.fixture(loop_scope="session")
async def cluster(deployed: Deployed, has_failed: Callable[[], bool]) -> AsyncIterator[Cluster]:
    await deployed.cluster.ensure_as_kept()
    yield deployed.cluster
    deployed.cluster.spoiled = has_failed()


@pytest_asyncio.fixture(loop_scope="session")
async def decommissioned(deployed: Deployed, has_failed: Callable[[], bool]) -> AsyncIterator[Cluster]:
    await deployed.cluster.ensure_decommissioned()
    yield deployed.cluster
    deployed.cluster.spoiled = has_failed()


@pytest_asyncio.fixture(loop_scope="session")
async def bare(victim: Victim) -> LxcMachine:
    """A slice on which nothing of the app is. Who uses it leaves it as it was, or somebody else's."""
    slices, machine = victim.slices, victim.machine
    if not slices.is_owner(machine, BARE):
        await slices.go_back(machine, BARE, BARE)
    slices.give_up(machine)
    return machine


def same_node(directory: Path, digest: str, machine: LxcMachine, *, project: str = "proj") -> MemoryPlatform:
    platform = MemoryPlatform(directory, digest, project=project)
    for component in (CONTROLLER, WORKER):
        platform.place(component, machine)
    return platform


async def test_deploy_ends_with_a_real_job(deployed: Deployed, cluster: Cluster) -> None:
    job = deployed.operation.result["first_job"]
    assert job["srun_hosts"] == [cluster.head.hostname]
    assert job["gpus_visible"] == GPUS
    assert job["batch_state"] == "COMPLETED"
    assert job["account"] == "proj"
    assert evidence_of(deployed.operation)["start-slurmctld"]["associations_loaded"] == ["proj/gpuaas"]
    versions = await facts.read_versions(cluster.head)
    assert set(versions) == {"slurmctld", "slurmdbd", "slurmd"}
    assert all(version.endswith("22.05.8") for version in versions.values())


async def test_the_logs_are_clean(deployed: Deployed) -> None:
    assert deployed.errors == []


async def test_every_operation_twice_changes_nothing(cluster: Cluster) -> None:
    before = await read_pids(cluster.head, *EVERYTHING.units)
    errors = await logs.read_unexpected_errors(cluster.head)
    assert "0" not in before
    await cluster.platform.deploy()
    await cluster.run("add", cluster.head)
    await cluster.run("recover", cluster.head)
    assert await read_pids(cluster.head, *EVERYTHING.units) == before
    assert await logs.read_unexpected_errors(cluster.head) == errors


async def test_gpus_are_counted_and_pmix_works(cluster: Cluster) -> None:
    run_one = "cd /; runuser -u gpuaas -- timeout 30 srun --mpi=pmix --gres=gpu:1 true"
    result = await cluster.head.read(run_one)
    assert result.ok, result.stderr
    node = await cluster.head.read("timeout 10 scontrol --oneliner show node")
    assert f"gres/gpu={GPUS}" in node.stdout
    rows = "timeout 20 sacct --allusers --allocations --noheader --parsable2 --format=alloctres"
    await wait_for(cluster.head, "the GPU in sacct", f"{rows} | grep gres/gpu=1")


async def test_a_node_survives_slurmctld_killed_right_after_the_join(cluster: Cluster) -> None:
    (before,) = await read_pids(cluster.head, "slurmctld.service")
    await cluster.run("recover", cluster.head)
    await cluster.head.read("systemctl kill --signal=KILL slurmctld.service")
    back = f"timeout 10 scontrol ping | grep -q 'is UP' && test $(systemctl show -P MainPID slurmctld) != {before}"
    await wait_for(cluster.head, "slurmctld to come back", back)
    # The end of a job that slurmctld had not written down yet is lost with it; this is about the node.
    assert (await cluster.head.read("timeout 20 scancel --user=gpuaas")).ok
    await cluster.wait_until_idle()
    record = await nodes.read_node(cluster.head, cluster.head.hostname)
    assert record.present == "yes"


async def test_a_persons_drain_is_not_undone(cluster: Cluster) -> None:
    name = cluster.head.hostname
    drain = f"timeout 10 scontrol update nodename={name} state=DRAIN reason=mine"
    assert (await cluster.head.read(drain)).ok
    with pytest.raises(OperationFailed, match="does not undo that"):
        await cluster.run("recover", cluster.head)
    record = await nodes.read_node(cluster.head, name)
    assert (record.reason, record.reason_by) == ("mine", "root")
    assert "DRAIN" in record.state
    assert (await cluster.head.read(f"timeout 10 scontrol update nodename={name} state=RESUME")).ok
    await cluster.run("recover", cluster.head)


async def test_a_restart_of_the_machine_is_survived(cluster: Cluster) -> None:
    name = cluster.head.hostname
    # slurmctld writes its state down some seconds after a change: what a person did just before is not lost.
    saved = "[ /var/lib/slurm/slurmctld/node_state -nt /run/test-mark ]"
    for change in ("state=DRAIN reason=mine", "state=RESUME"):
        changed = f"touch /run/test-mark && timeout 10 scontrol update nodename={name} {change}"
        assert (await cluster.head.read(changed)).ok
        await wait_for(cluster.head, f"slurmctld to save {change}", saved)
    assert (await lxc("restart", "--force", name)).ok
    await wait_until_running(name)
    await cluster.wait_until_idle()
    await cluster.platform.deploy()


async def test_decommission_with_a_running_job_leaves_nothing(cluster: Cluster) -> None:
    machine = cluster.head
    # As a controller leaves it that is killed before slurmctld runs.
    assert not (await machine.read(QUICK)).ok, "no deploy leaves it so"
    await machine.run_step("quicken", quick_route.quicken(machine.address))
    assert (await machine.read(QUICK)).ok
    assert "routes" in {check.check for check in (await read_receipt(machine)).left}
    await cluster.submit(machine)
    # As an earlier version of the app has left it: its record is the snapshot alone.
    assert (await machine.read("cd /var/lib/gpuaas-slurm && rm brought kept && ls baseline/paths")).ok
    first = await cluster.platform.run("decommission", outcome_lost=True)
    assert evidence_of(first)["cancel-jobs"]["jobs"] == "1 cancelled, 0 left"
    await cluster.slices.assert_as_before(machine)
    assert (await machine.read("pgrep -f 'sleep 1000'")).exit_status == 1
    assert_clean((await cluster.run("decommission")).result)


async def test_redeploy_at_once_and_remove_again(decommissioned: Cluster) -> None:
    slices, machine = decommissioned.slices, decommissioned.head
    # For another project: the user's default account is another one, and the old one is nowhere.
    other = same_node(slices.directory, await slices.digest(machine), machine, project="other")
    assert (await other.deploy()).result["first_job"]["account"] == "other"
    accounts = "timeout 20 sacctmgr --noheader --parsable2 show associations user=gpuaas format=account,user"
    assert (await machine.read(accounts)).stdout.split() == ["other|gpuaas"]
    assert await logs.read_unexpected_errors(machine) == []
    found = await read_receipt(machine)
    assert {"packages", "processes", "units", "users", "groups", "ports", "paths"} <= {
        check.check for check in found.left
    }
    assert (await machine.read("echo mine >/etc/slurm/mine.conf")).ok
    assert_clean((await other.run("decommission")).result)
    kept = await machine.read("cat /etc/slurm/*; rm -r /etc/slurm")
    assert kept.stdout == "mine\n", "what a person made stays, and nothing else"
    await slices.assert_as_before(machine)


class Misfit(LxcMachine):
    """Gets a bundle that was made for an image which has one package more."""

    async def deliver(self, digest: str) -> str:
        bundle = await super().deliver(digest)
        made = await self.read(f"""
            mkdir -p /tmp/misfit && cd /tmp/misfit && tar -xf {bundle}
            awk -v RS= -v ORS='\\n\\n' '!/^Package: libmunge2/' Packages >less && mv less Packages
            tar -cf /tmp/misfit.tar names needs-* role-* Packages *.deb
        """)
        assert made.ok, made.stderr
        return "/tmp/misfit.tar"


async def test_a_bundle_that_does_not_fit_the_image_is_refused_before_anything_is_changed(
    bare: LxcMachine, victim: Victim, tmp_path: Path
) -> None:
    platform = same_node(tmp_path, victim.digest, Misfit(bare.hostname, bare.address, bare.bundles))
    before = await everything(bare)
    with pytest.raises(OperationFailed, match="libmunge2") as caught:
        await platform.run("deploy")
    assert caught.value.code == "bundle_does_not_fit"
    assert "nothing was changed" in caught.value.detail
    assert before ^ await everything(bare) == set(), "not even a record of ours"
    assert_clean((await platform.run("decommission")).result)
    assert before ^ await everything(bare) == set()
    await bare.read("rm -r /tmp/misfit /tmp/misfit.tar")
    victim.slices.own(bare, BARE)


class NoBundle(LxcMachine):
    """Gets a file that is none of `slurm-app bundle`, where a machine without an agent gets it."""

    async def deliver(self, digest: str) -> str:
        path = f"{COPIED_ARTIFACTS}/{digest.removeprefix('sha256:')}"
        made = await self.read(f"mkdir -p {COPIED_ARTIFACTS} && tar -cf {path} /etc/hostname 2>/dev/null")
        assert made.ok, made.stderr
        return path


async def test_a_file_that_is_no_bundle_is_refused_before_anything_is_changed(
    bare: LxcMachine, victim: Victim, tmp_path: Path
) -> None:
    platform = same_node(tmp_path, victim.digest, NoBundle(bare.hostname, bare.address, {}))
    before = await everything(bare)
    with pytest.raises(OperationFailed, match="not a bundle of Debian packages") as caught:
        await platform.run("deploy")
    assert caught.value.code == "bundle_does_not_fit"
    after = await everything(bare)
    assert {line.split()[1] for line in before ^ after} <= {str(Path(COPIED_ARTIFACTS).parent)}
    await bare.read(f"rmdir {Path(COPIED_ARTIFACTS).parent}")
    victim.slices.own(bare, BARE)


async def test_other_peoples_files_are_refused_and_left_alone(bare: LxcMachine, victim: Victim, tmp_path: Path) -> None:
    made = "mkdir -p /etc/slurm && echo mine >/etc/slurm/slurm.conf"
    assert (await bare.read(made)).ok
    platform = same_node(tmp_path, victim.digest, bare)
    with pytest.raises(OperationFailed, match=r"slurm\.conf"):
        await platform.run("deploy")
    assert_clean((await platform.run("decommission")).result)
    assert (await bare.read("cat /etc/slurm/slurm.conf")).stdout == "mine\n"
    assert (await bare.read("rm -r /etc/slurm")).ok
    await victim.slices.assert_as_before(bare)
    victim.slices.own(bare, BARE)


async def test_a_person_named_like_a_daemon_holds_no_teardown_up(
    bare: LxcMachine, victim: Victim, tmp_path: Path
) -> None:
    """Names of people begin with u- today; there are people from before."""
    made = "groupadd --gid 10005 munge && useradd --uid 10005 --gid 10005 --create-home munge"
    assert (await bare.read(made)).ok
    before = await everything(bare)
    platform = same_node(tmp_path, victim.digest, bare)
    with pytest.raises(OperationFailed, match="munge, the account of a person") as caught:
        await platform.run("deploy")
    assert caught.value.code == "machine_not_clean"
    assert_clean((await platform.run("decommission")).result)
    assert differences(before, await everything(bare)) == []


async def test_what_was_installed_around_a_person_is_removed(victim: Victim, tmp_path: Path) -> None:
    """As a version of the app left it that did not look at names: Debian's removal would stop at that person."""
    machine = victim.machine
    await victim.go_back_to(INSTALLED)
    became = await machine.read(f"""
        systemctl stop munge.service
        usermod --uid 10005 --home /home/munge --move-home munge && groupmod --gid 10005 munge
        usermod --gid 10005 munge && install -d -o munge -g munge /home/munge
        for list in users groups; do
            sort -u -o {BASELINE}/$list {BASELINE}/$list <(echo munge)
        done
    """)
    assert became.ok, became.stderr
    assert_clean((await same_node(tmp_path, victim.digest, machine).run("decommission")).result)
    assert (await machine.read("stat -c %U:%u /home/munge")).stdout == "munge:10005\n"
    assert not (await machine.read("dpkg-query -W munge")).ok
    victim.slices.give_up(machine)
