"""The whole machine layer on a real slice: install, run, repeat, break, remove, compare, again.

The tests of this file share one slice and go in order, because an install is the expensive part.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio
from lxc_machine import (
    POOL,
    LxcMachine,
    launch,
    lxc,
    make_environment,
    read_dpkg_status,
    remove_environment,
    wait_until_running,
)

from gpuaas_sdk.machines.base import CommandError
from slurm_app.bundle import cache_directory, make_bundle
from slurm_app.decommission_phases import DECOMMISSION_PHASES
from slurm_app.errors import RefusedError
from slurm_app.phases import BASELINE, DEPLOY_PHASES, FIT, WORKER_PHASES, Evidence, Phase, ensure_packages_installed
from slurm_app.scope import Scope
from slurm_app.slurm import facts, logs, slurmctld
from slurm_app.slurm.owned import UNITS
from slurm_app.slurm.receipt import read_receipt

pytestmark = [pytest.mark.machines, pytest.mark.asyncio(loop_scope="module")]

NAME = "slurmdev-test"
ADDRESS = "10.87.200.10"
GPUS = 2

# Everything on the machine that a removal must put back: packages, accounts, every path, the content of /etc.
# Left out: what belongs to the kernel, to people, or to the logs.
EVERYTHING = r"""
export LC_ALL=C
dpkg-query -W -f 'package ${binary:Package} ${Version} ${db:Status-Status}\n' | sort
sed 's/^/passwd /' /etc/passwd; sed 's/^/group /' /etc/group
find / -xdev \( -path /proc -o -path /sys -o -path /dev -o -path /run -o -path /tmp -o -path /var/tmp \
    -o -path /var/log -o -path /mnt \) -prune -o -printf 'path %p %y %m %U:%G %l\n' | sort
find /etc -xdev -type f -exec sha256sum {} + | sort | sed 's/^/content /'
find /run -xdev -maxdepth 1 -printf 'run %f\n' | grep -v gpuaas-step | sort
systemctl list-units --all --no-legend --plain --type=service,socket,timer | awk '{ print "unit", $1, $2, $3 }' |
    grep -v gpuaas-test- | sort
"""
# All that differs after an install and a removal, each with its reason.
HARMLESS = {
    "  /etc/passwd-": "the previous version, kept by useradd",
    "  /etc/group-": "the previous version, kept by groupadd",
    "  /etc/shadow-": "the previous version, kept by useradd",
    "  /etc/gshadow-": "the previous version, kept by groupadd",
    "path /var/cache/ldconfig/aux-cache ": "cache of ldconfig",
    "path /var/lib/ucf/hashfile.": "the previous versions of ucf's registry",
    "run adduser": "lock of adduser",
    "unit systemd-networkd-wait-online.service": "started by the first unit that wants the network",
}


@dataclass
class Cluster:
    machine: LxcMachine
    scope: Scope
    before: set[str]


async def everything(machine: LxcMachine) -> set[str]:
    result = await machine.read(EVERYTHING, timeout=60)
    assert result.ok, result.stderr
    return set(result.stdout.splitlines())


async def run(phases: Iterable[Phase], scope: Scope, *, title: str) -> dict[str, Evidence]:
    evidence: dict[str, Evidence] = {}
    began = time.monotonic()
    print(f"\n{title}")
    for phase in phases:
        started = time.monotonic()
        evidence[phase.key] = await phase.run(scope)
        print(f"  {phase.key:20} {time.monotonic() - started:6.2f} s")
    print(f"  {'in all':20} {time.monotonic() - began:6.2f} s", flush=True)
    return evidence


async def pids(machine: LxcMachine) -> list[str]:
    names = " ".join(UNITS)
    return (await machine.read(f"systemctl show --property=MainPID --value {names}")).stdout.split()


async def wait_for(machine: LxcMachine, what: str, script: str, *, seconds: float = 60) -> str:
    deadline = time.monotonic() + seconds
    while True:
        result = await machine.read(script)
        if result.ok:
            return result.stdout
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}: {result.stdout}{result.stderr}"
        await asyncio.sleep(0.1)


def assert_clean(evidence: dict[str, Evidence]) -> None:
    (found,) = evidence["prove-removal"]["receipts"]
    assert found["clean"] is True
    assert {check["check"] for check in found["checks"]} >= {"packages", "users", "ports", "paths", "record"}


def differences(before: set[str], after: set[str]) -> list[str]:
    return sorted(line for line in before ^ after if not any(harmless in line for harmless in HARMLESS))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def cluster(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Cluster]:
    if not POOL:
        pytest.skip("needs machines: make machines")
    directory = tmp_path_factory.mktemp("bundle")
    await make_environment()
    try:
        await launch(NAME, address=ADDRESS, gpus=GPUS)
        status = directory / "status"
        status.write_text(await read_dpkg_status(NAME))
        bundle = make_bundle(output=directory / "bundle.tar", dpkg_status=status, cache=cache_directory())
        machine = LxcMachine(NAME, ADDRESS, {bundle.digest: Path(bundle.path)})
        scope = Scope("demo", "main", "proj", machine, (machine,), bundle.digest)
        await machine.deliver(bundle.digest)
        yield Cluster(machine, scope, await everything(machine))
    finally:
        await remove_environment()


async def test_deploy_ends_with_a_real_job(cluster: Cluster) -> None:
    evidence = await run(DEPLOY_PHASES, cluster.scope, title="first deploy")
    job = evidence["run-first-job"]
    assert job["srun_hosts"] == [NAME]
    assert job["gpus_visible"] == GPUS
    assert job["batch_state"] == "COMPLETED"
    assert job["account"] == "proj"
    assert evidence["start-slurmctld"]["associations_loaded"] == ["proj/gpuaas"]
    assert await facts.read_version(cluster.machine) == "22.05.8"


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
    state = f"timeout 10 sinfo --noheader --nodes={NAME} --format=%T | grep -x idle"
    await wait_for(cluster.machine, "the node to be idle", state)
    record = await slurmctld.read_node(cluster.machine, NAME)
    assert record.present == "yes"


async def test_a_persons_drain_is_not_undone(cluster: Cluster) -> None:
    drain = f"timeout 10 scontrol update nodename={NAME} state=DRAIN reason=mine"
    assert (await cluster.machine.read(drain)).ok
    with pytest.raises(CommandError, match="to be usable"):
        await next(phase for phase in DEPLOY_PHASES if phase.key == "join-workers").run(cluster.scope)
    record = await slurmctld.read_node(cluster.machine, NAME)
    assert (record.reason, record.reason_by) == ("mine", "root")
    assert "DRAIN" in record.state
    assert (await cluster.machine.read(f"timeout 10 scontrol update nodename={NAME} state=RESUME")).ok


async def test_a_restart_of_the_machine_is_survived(cluster: Cluster) -> None:
    assert (await lxc("restart", "--force", NAME)).ok
    await wait_until_running(NAME)
    await wait_for(cluster.machine, "the node to be idle", "timeout 10 sinfo --noheader --format=%T | grep -x idle")
    await run(DEPLOY_PHASES, cluster.scope, title="after a restart of the machine")


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
    await run(DEPLOY_PHASES, cluster.scope, title="redeploy")
    assert await logs.read_unexpected_errors(cluster.machine) == []
    found = await read_receipt(cluster.machine)
    assert {"packages", "processes", "units", "users", "groups", "ports", "paths"} <= {
        check.check for check in found.left
    }
    assert_clean(await run(DECOMMISSION_PHASES, cluster.scope, title="second decommission"))
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
    assert_clean(await run(DECOMMISSION_PHASES, cluster.scope, title="decommission of half an install"))
    assert differences(cluster.before, await everything(cluster.machine)) == []


async def test_an_interrupted_install_is_taken_up_again(cluster: Cluster) -> None:
    await BASELINE.run(cluster.scope)
    install = asyncio.create_task(ensure_packages_installed(cluster.scope))
    unpacked = "dpkg-query -W -f '${db:Status-Status}' munge | grep -v not-installed"
    await wait_for(cluster.machine, "the install to be half-way", unpacked)
    await cluster.machine.read("systemctl kill --signal=KILL gpuaas-test-install-packages.service")
    with pytest.raises(CommandError):
        await install
    await run(DEPLOY_PHASES, cluster.scope, title="deploy after a killed install")
    assert_clean(await run(DECOMMISSION_PHASES, cluster.scope, title="third decommission"))
    assert differences(cluster.before, await everything(cluster.machine)) == []


async def test_other_peoples_files_are_refused_and_left_alone(cluster: Cluster) -> None:
    made = "mkdir -p /etc/slurm && echo mine >/etc/slurm/slurm.conf"
    assert (await cluster.machine.read(made)).ok
    with pytest.raises(RefusedError, match=r"slurm\.conf"):
        await BASELINE.run(cluster.scope)
    evidence = await run(DECOMMISSION_PHASES, cluster.scope, title="decommission of a refused machine")
    assert_clean(evidence)
    assert (await cluster.machine.read("cat /etc/slurm/slurm.conf")).stdout == "mine\n"
