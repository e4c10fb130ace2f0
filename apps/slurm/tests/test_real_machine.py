"""The whole machine layer on a real slice: install, run, repeat, break, remove, compare, again.

The tests of this file share one slice and go in order, because an install is the expensive part.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import pytest_asyncio
from lxc_machine import LxcMachine, lxc, machine_name, wait_until_running
from real_cluster import assert_clean, differences, everything, machines, run, wait_for

from gpuaas_sdk.machines.base import COPIED_ARTIFACTS, CommandError
from slurm_app.decommission_phases import DECOMMISSION_PHASES
from slurm_app.errors import RefusedError
from slurm_app.phases import BASELINE, DEPLOY_PHASES, FIT, WORKER_PHASES, ensure_packages_installed
from slurm_app.scope import Scope
from slurm_app.slurm import facts, logs, nodes, quick_route
from slurm_app.slurm.owned import EVERYTHING
from slurm_app.slurm.receipt import read_receipt

pytestmark = [pytest.mark.machines, pytest.mark.asyncio(loop_scope="module")]

NAME = machine_name("one")
GPUS = 2
QUICK = "ip route show table local | grep quickack"


@dataclass
class Cluster:
    machine: LxcMachine
    scope: Scope
    before: set[str]


async def pids(machine: LxcMachine) -> list[str]:
    names = " ".join(EVERYTHING.units)
    return (await machine.read(f"systemctl show --property=MainPID --value {names}")).stdout.split()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    async with machines(tmp_path_factory.mktemp("bundle"), {"one": GPUS}) as (found, digest):
        machine = found["one"]
        scope = Scope("demo", "main", "proj", machine, (machine,), digest)
        yield Cluster(machine, scope, await everything(machine))


async def test_deploy_ends_with_a_real_job(cluster: Cluster) -> None:
    evidence = await run(DEPLOY_PHASES, cluster.scope, title="first deploy")
    job = evidence["run-first-job"]
    assert job["srun_hosts"] == [NAME]
    assert job["gpus_visible"] == GPUS
    assert job["batch_state"] == "COMPLETED"
    assert job["account"] == "proj"
    assert evidence["start-slurmctld"]["associations_loaded"] == ["proj/gpuaas"]
    versions = await facts.read_versions(cluster.machine)
    assert set(versions) == {"slurmctld", "slurmdbd", "slurmd"}
    assert all(version.endswith("22.05.8") for version in versions.values())


async def test_the_logs_are_clean(cluster: Cluster) -> None:
    assert await logs.read_unexpected_errors(cluster.machine) == []


async def test_every_phase_twice_changes_nothing(cluster: Cluster) -> None:
    before = await pids(cluster.machine)
    assert "0" not in before
    await run(DEPLOY_PHASES, cluster.scope, title="the same again")
    await run(WORKER_PHASES, cluster.scope, title="the worker's phases again")
    assert await pids(cluster.machine) == before
    assert await logs.read_unexpected_errors(cluster.machine) == []


async def test_gpus_are_counted_and_pmix_works(cluster: Cluster) -> None:
    run_one = "cd /; runuser -u gpuaas -- timeout 30 srun --mpi=pmix --gres=gpu:1 true"
    result = await cluster.machine.read(run_one)
    assert result.ok, result.stderr
    node = await cluster.machine.read("timeout 10 scontrol --oneliner show node")
    assert f"gres/gpu={GPUS}" in node.stdout
    rows = "timeout 20 sacct --allusers --allocations --noheader --parsable2 --format=alloctres"
    await wait_for(cluster.machine, "the GPU in sacct", f"{rows} | grep gres/gpu=1")


async def test_a_node_survives_slurmctld_killed_right_after_the_join(cluster: Cluster) -> None:
    await cluster.machine.read("systemctl kill --signal=KILL slurmctld.service")
    await wait_for(cluster.machine, "slurmctld to come back", "timeout 10 scontrol ping | grep -q 'is UP'")
    # The end of a job that slurmctld had not written down yet is lost with it; this is about the node.
    assert (await cluster.machine.read("timeout 20 scancel --user=gpuaas")).ok
    state = f"said=$(timeout 10 sinfo --noheader --nodes={NAME} --format=%T); echo $said; [ $said = idle ]"
    await wait_for(cluster.machine, "the node to be idle", state, seconds=120)
    record = await nodes.read_node(cluster.machine, NAME)
    assert record.present == "yes"


async def test_a_persons_drain_is_not_undone(cluster: Cluster) -> None:
    drain = f"timeout 10 scontrol update nodename={NAME} state=DRAIN reason=mine"
    assert (await cluster.machine.read(drain)).ok
    with pytest.raises(RefusedError, match="does not undo that"):
        await next(phase for phase in DEPLOY_PHASES if phase.key == "join-workers").run(cluster.scope)
    record = await nodes.read_node(cluster.machine, NAME)
    assert (record.reason, record.reason_by) == ("mine", "root")
    assert "DRAIN" in record.state
    resume = f"touch /run/test-mark; timeout 10 scontrol update nodename={NAME} state=RESUME"
    assert (await cluster.machine.read(resume)).ok


async def test_a_restart_of_the_machine_is_survived(cluster: Cluster) -> None:
    # slurmctld writes its state down some seconds after a change: what a person did just before is not lost.
    saved = "[ /var/lib/slurm/slurmctld/node_state -nt /run/test-mark ]"
    await wait_for(cluster.machine, "slurmctld to save its state", saved)
    assert (await lxc("restart", "--force", NAME)).ok
    await wait_until_running(NAME)
    await wait_for(cluster.machine, "the node to be idle", "timeout 10 sinfo --noheader --format=%T | grep -x idle")
    await run(DEPLOY_PHASES, cluster.scope, title="after a restart of the machine")


async def test_a_route_that_was_left_quick_is_seen_by_the_probe(cluster: Cluster) -> None:
    """As a controller leaves it that is killed before slurmctld runs; the decommission below puts it back."""
    assert not (await cluster.machine.read(QUICK)).ok, "no deploy leaves it so"
    await cluster.machine.run_step("quicken", quick_route.quicken(cluster.machine.address))
    assert (await cluster.machine.read(QUICK)).ok
    assert "routes" in {check.check for check in (await read_receipt(cluster.machine)).left}


async def test_decommission_with_a_running_job_leaves_nothing(cluster: Cluster) -> None:
    submit = "cd /; runuser -u gpuaas -- sbatch --parsable --output=/dev/null --wrap='sleep 1000'"
    assert (await cluster.machine.read(submit)).ok
    running = "timeout 10 squeue --noheader --format=%T | grep -x RUNNING"
    await wait_for(cluster.machine, "the job to run", running)
    evidence = await run(DECOMMISSION_PHASES, cluster.scope, title="decommission")
    assert evidence["cancel-jobs"]["jobs"] == "1 cancelled, 0 left"
    assert_clean(evidence)
    assert differences(cluster.before, await everything(cluster.machine)) == []
    assert (await cluster.machine.read("pgrep -f 'sleep 1000'")).exit_status == 1


async def test_decommission_twice(cluster: Cluster) -> None:
    assert_clean(await run(DECOMMISSION_PHASES, cluster.scope, title="decommission again"))


async def test_redeploy_at_once_and_remove_again(cluster: Cluster) -> None:
    # For another project: the user's default account is another one, and the old one is nowhere.
    other = await run(DEPLOY_PHASES, replace(cluster.scope, account="other"), title="redeploy")
    assert other["run-first-job"]["account"] == "other"
    accounts = "timeout 20 sacctmgr --noheader --parsable2 show associations user=gpuaas format=account,user"
    assert (await cluster.machine.read(accounts)).stdout.split() == ["other|gpuaas"]
    assert await logs.read_unexpected_errors(cluster.machine) == []
    found = await read_receipt(cluster.machine)
    assert {"packages", "processes", "units", "users", "groups", "ports", "paths"} <= {
        check.check for check in found.left
    }
    assert (await cluster.machine.read("echo mine >/etc/slurm/mine.conf")).ok
    assert_clean(await run(DECOMMISSION_PHASES, cluster.scope, title="second decommission"))
    kept = await cluster.machine.read("cat /etc/slurm/*; rm -r /etc/slurm")
    assert kept.stdout == "mine\n", "what a person made stays, and nothing else"
    assert differences(cluster.before, await everything(cluster.machine)) == []


async def test_decommission_in_the_middle_of_an_install(cluster: Cluster) -> None:
    await FIT.run(cluster.scope)
    await BASELINE.run(cluster.scope)
    install = asyncio.create_task(ensure_packages_installed(cluster.scope))
    unpacked = "dpkg-query -W -f '${db:Status-Status}' munge | grep -v not-installed"
    await wait_for(cluster.machine, "the install to be half-way", unpacked)
    await cluster.machine.read("systemctl kill --signal=KILL gpuaas-test-install-packages.service")
    with pytest.raises(CommandError):
        await install
    # What a person makes meanwhile is not ours, wherever it lies.
    mine = "/etc/mine.conf /opt/mine /etc/slurm/mine.conf /usr/local/bin/mine"
    made = f"mkdir -p /etc/slurm; for file in {mine}; do echo mine >$file; done"
    assert (await cluster.machine.read(made)).ok
    evidence = await run(DECOMMISSION_PHASES, cluster.scope, title="decommission of half an install")
    assert_clean(evidence)
    assert (await cluster.machine.read(f"cat {mine}")).stdout == "mine\n" * 4
    (found,) = evidence["prove-removal"]["receipts"]
    kept = next(check for check in found["checks"] if check["check"] == "kept")
    assert kept["found"] == "/etc/slurm/mine.conf"
    assert (await cluster.machine.read(f"rm {mine}; rmdir /etc/slurm")).ok
    assert differences(cluster.before, await everything(cluster.machine)) == []


async def test_an_interrupted_install_is_taken_up_again(cluster: Cluster) -> None:
    await BASELINE.run(cluster.scope)
    install = asyncio.create_task(ensure_packages_installed(cluster.scope))
    unpacked = "dpkg-query -W -f '${db:Status-Status}' munge | grep -v not-installed"
    await wait_for(cluster.machine, "the install to be half-way", unpacked)
    await cluster.machine.read("systemctl kill --signal=KILL gpuaas-test-install-packages.service")
    with pytest.raises(CommandError):
        await install
    # The worst moment that dpkg knows: it has begun with a package and cannot go on with it.
    worst = "/^Package: munge$/,/^Status:/ s/^Status:.*/Status: install reinstreq half-installed/"
    files = "/var/lib/dpkg/status $(find /var/lib/dpkg/updates -type f)"
    assert (await cluster.machine.read(f"sed -i '{worst}' {files}")).ok
    await run(DEPLOY_PHASES, cluster.scope, title="deploy after a killed install")
    assert_clean(await run(DECOMMISSION_PHASES, cluster.scope, title="third decommission"))
    assert differences(cluster.before, await everything(cluster.machine)) == []


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


async def test_a_bundle_that_does_not_fit_the_image_is_refused_before_anything_is_changed(cluster: Cluster) -> None:
    misfit = Misfit(NAME, cluster.machine.address, {})
    scope = replace(cluster.scope, controller=misfit, workers=(misfit,))
    before = await everything(misfit)
    await BASELINE.run(scope)
    with pytest.raises(RefusedError, match="libmunge2") as caught:
        await ensure_packages_installed(scope)
    assert caught.value.code == "bundle_does_not_fit"
    assert "nothing was changed" in caught.value.detail
    assert before ^ await everything(misfit) == set(), "not even a record of ours"
    assert_clean(await run(DECOMMISSION_PHASES, scope, title="decommission after a bundle that does not fit"))
    assert before ^ await everything(misfit) == set()
    await misfit.read("rm -r /tmp/misfit /tmp/misfit.tar")


class NoBundle(LxcMachine):
    """Gets a file that is none of `slurm-app bundle`, where a machine without an agent gets it."""

    async def deliver(self, digest: str) -> str:
        path = f"{COPIED_ARTIFACTS}/{digest.removeprefix('sha256:')}"
        made = await self.read(f"mkdir -p {COPIED_ARTIFACTS} && tar -cf {path} /etc/hostname 2>/dev/null")
        assert made.ok, made.stderr
        return path


async def test_a_file_that_is_no_bundle_is_refused_before_anything_is_changed(cluster: Cluster) -> None:
    machine = NoBundle(NAME, cluster.machine.address, {})
    scope = replace(cluster.scope, controller=machine, workers=(machine,))
    before = await everything(machine)
    await BASELINE.run(scope)
    with pytest.raises(RefusedError, match="not a file that slurm-app bundle has made") as caught:
        await ensure_packages_installed(scope)
    assert caught.value.code == "bundle_does_not_fit"
    after = await everything(machine)
    assert {line.split()[1] for line in before ^ after} <= {str(Path(COPIED_ARTIFACTS).parent)}
    await machine.read(f"rmdir {Path(COPIED_ARTIFACTS).parent}")


async def test_other_peoples_files_are_refused_and_left_alone(cluster: Cluster) -> None:
    made = "mkdir -p /etc/slurm && echo mine >/etc/slurm/slurm.conf"
    assert (await cluster.machine.read(made)).ok
    with pytest.raises(RefusedError, match=r"slurm\.conf"):
        await BASELINE.run(cluster.scope)
    evidence = await run(DECOMMISSION_PHASES, cluster.scope, title="decommission of a refused machine")
    assert_clean(evidence)
    assert (await cluster.machine.read("cat /etc/slurm/slurm.conf")).stdout == "mine\n"
