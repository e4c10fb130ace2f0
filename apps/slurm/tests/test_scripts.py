"""The scripts are bash, say what they should, and hold no secret."""

import subprocess

import pytest

from gpuaas_sdk.machines.base import CommandResult
from gpuaas_sdk.runtime.receipts import probe_script
from gpuaas_sdk.testing import FakeMachine
from slurm_app.errors import NotReadyError, RefusedError
from slurm_app.joining import ensure_worker_joined
from slurm_app.slurm import (
    accounting,
    facts,
    jobs,
    logs,
    mariadb,
    munge,
    nodes,
    owned,
    packages,
    receipt,
    script,
    slurmctld,
    slurmd,
    slurmdbd,
    teardown,
)
from slurm_app.slurm.config import LINUXPROC
from slurm_app.slurm.role_removal import EVERYTHING, RoleRemoval
from slurm_app.slurm.roles import Role

from .answers import FACTS, SLURMD_C, facts_of, said

WORKER_LEAVES = RoleRemoval(frozenset({Role.WORKER}), frozenset({Role.CONTROLLER}))
SHAPE = facts.parse_shape(facts_of(FACTS + SLURMD_C))
SCRIPTS = {
    "install": packages.DEBIAN.install_script("/bundles/x", [Role.WORKER, Role.CONTROLLER]),
    "munge": munge.start_script(),
    "mariadb": mariadb.start_script(),
    "slurmdbd": slurmdbd.start_script(),
    "configuration": slurmctld.configuration_script(
        cluster_name="demo",
        partition="main",
        host="node-1",
        address="10.0.0.1",
        tracking=LINUXPROC,
        overrides={"KillWait": "10"},
        memory_per_cpu=500,
    ),
    "slurmctld": slurmctld.start_script(),
    "associations": accounting.associations_script(
        address="10.0.0.1", cluster_name="demo", account="proj", users=["gpuaas"]
    ),
    "barrier": accounting.barrier_script(account="proj", users=["gpuaas"]),
    "slurmd": script.step(slurmd.start_script(shape=SHAPE, conf_server="10.0.0.9", features=["fast"])),
    "registered": script.step(slurmd.registered_script(host="node-1", comment="mem_1")),
    "delete": script.step(nodes.delete_node_script("node-1")),
    "job": jobs.first_job_script(user="gpuaas", partition="main", account="proj", workers=("node-1",), gpus=2),
    "clean": teardown.clean_script(EVERYTHING),
    "clean worker": teardown.clean_script(WORKER_LEAVES),
    "probe": probe_script(receipt.commands(EVERYTHING), receipt.functions(EVERYTHING)),
    "probe worker": probe_script(receipt.commands(WORKER_LEAVES), receipt.functions(WORKER_LEAVES)),
    "logs": logs.LOG_SCRIPT,
    "record": owned.RECORD.restore_script(),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts_are_valid_bash(name: str) -> None:
    checked = subprocess.run(["bash", "-n"], input=SCRIPTS[name], text=True, capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr


def run(text: str, tmp_path: object) -> subprocess.CompletedProcess[str]:
    prelude = script.PRELUDE.replace(script.STATE_DIRECTORY, str(tmp_path))
    return subprocess.run(
        ["bash", "-c", "set -euo pipefail\n" + prelude + text], text=True, capture_output=True, check=False
    )


def test_put_replaces_only_what_differs(tmp_path: object) -> None:
    owner = subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()
    group = subprocess.run(["id", "-gn"], capture_output=True, text=True, check=True).stdout.strip()
    piece = script.put_file(f"{tmp_path}/file", "a $b `c`\n", mode="0640", owner=f"{owner}:{group}")
    inode = f"stat -c '%i %a' {tmp_path}/file\n"
    done = run(piece + inode + piece + inode + f"cat {tmp_path}/file", tmp_path)
    assert done.returncode == 0, done.stderr
    first, second, content = done.stdout.splitlines()
    assert first == second
    assert first.endswith(" 640")
    assert content == "a $b `c`"


def test_put_refuses_content_that_would_end_it_early() -> None:
    with pytest.raises(ValueError, match="end marker"):
        script.put_file("/x", "a\nGPUAAS_END_OF_FILE\nreboot\n")


def test_wait_for_says_what_it_waited_for(tmp_path: object) -> None:
    done = run("wait_for 0 'the moon' false", tmp_path)
    assert done.returncode == 1
    assert "waited 0 s for the moon" in done.stderr


async def test_a_given_munge_key_never_stands_in_a_script() -> None:
    machine = FakeMachine()
    await munge.ensure_munge_running(machine, b"secret key")
    assert machine.files[munge.STAGED_KEY] == (b"secret key", 0o600, "root")
    assert "secret" not in "".join(machine.steps.values())


@pytest.mark.parametrize(
    "found", ["package slurmctld", "package munge", "path /etc/slurm/slurm.conf", "port 6817", "person munge"]
)
def test_a_machine_with_another_scheduler_is_refused(found: str) -> None:
    baseline = packages.parse_baseline(f"package bash\nport 22\n{found}\n")
    with pytest.raises(RefusedError, match=found.split()[1]):
        packages.refuse_foreign(FakeMachine(), baseline)


def test_an_ordinary_machine_is_not_refused() -> None:
    packages.refuse_foreign(FakeMachine(), packages.parse_baseline("package libmunge-doc\nport 22\n"))


async def test_the_barrier_raises_where_slurmctld_knows_nothing() -> None:
    machine = FakeMachine(answers={"assoc_mgr": CommandResult(1, "", "waited 20 s for …")})
    with pytest.raises(NotReadyError, match="waited"):
        await accounting.read_associations_loaded(machine, account="proj", users=["gpuaas"])


async def test_a_same_node_worker_takes_one_step() -> None:
    machine = FakeMachine(answers={"slurmd -C": said(FACTS + SLURMD_C)})
    await ensure_worker_joined(machine, machine, comment="mem_1")
    assert [*machine.steps] == ["join-worker-node-1"]
    text = machine.steps["join-worker-node-1"]
    assert text.index("Name=gpu File=") < text.index("ensure_unit_current slurmd") < text.index("comment=mem_1")


async def test_a_split_worker_touches_only_itself_and_the_controller() -> None:
    controller = FakeMachine(hostname="node-0", address="10.0.0.9", allocation_id="alc_0")
    worker = FakeMachine(answers={"slurmd -C": said(FACTS + SLURMD_C)})
    await ensure_worker_joined(controller, worker, comment="mem_1", features=("fast",))
    assert [*controller.steps] == ["register-node-node-1"]
    assert [*worker.steps] == ["start-slurmd-node-1"]
    assert "--conf-server 10.0.0.9:6817 -Z" in worker.steps["start-slurmd-node-1"]
    assert "Feature=fast" in worker.steps["start-slurmd-node-1"]
    assert "reconfigure" not in worker.steps["start-slurmd-node-1"] + controller.steps["register-node-node-1"]


async def test_a_slurmd_whose_record_is_missing_is_started_anew() -> None:
    missing: dict[str, CommandResult | Exception] = {
        "join-worker": said(""),
        "show node": CommandResult(1, "", "Node node-1 not found"),
        "slurmd -C": said(FACTS + SLURMD_C),
    }
    machine = FakeMachine(answers=missing)
    await ensure_worker_joined(machine, machine, comment="mem_1")
    assert 'rm -f "$state/applied/slurmd.service"' in machine.steps["join-worker-node-1"]


@pytest.mark.parametrize("features", [("a b",), ("x\n",), ("$(id)",), ("A",)])
async def test_features_with_other_characters_are_refused(features: tuple[str, ...]) -> None:
    machine = FakeMachine(answers={"slurmd -C": said(FACTS + SLURMD_C)})
    with pytest.raises(RefusedError):
        await ensure_worker_joined(machine, machine, comment="mem_1", features=features)
    assert machine.steps == {}


NODE = "NodeName=node-1 Arch=x86_64 State={} Reason={} [{}@2026-11-15T21:25:04] Comment=x\n"


@pytest.mark.parametrize(
    ("state", "reason", "by", "refused"),
    [
        ("IDLE+DRAIN+DYNAMIC_NORM+INVALID_REG", "gres/gpu count reported lower", "slurm", True),
        ("IDLE+DRAIN+DYNAMIC_NORM", "gres/gpu count reported lower", "slurm", True),
        ("IDLE+DRAIN+DYNAMIC_NORM", "gres/gpu is broken, do not touch", "root", False),
        ("IDLE+DRAIN+DYNAMIC_NORM", "maintenance", "alice", False),
    ],
)
def test_a_persons_drain_is_never_taken_for_slurms_own(state: str, reason: str, by: str, refused: bool) -> None:
    record = nodes.parse_node("node-1", said(NODE.format(state, reason, by)))
    assert record.present == "yes"
    assert record.reason == reason
    assert record.refused_by_slurm is refused


def test_a_node_is_unknown_unless_slurmctld_says_so() -> None:
    gone = CommandResult(1, "", "Node node-1 not found")
    away = CommandResult(1, "", "slurm_load_node error: Unable to contact slurm controller")
    assert nodes.parse_node("node-1", gone).present == "no"
    assert nodes.parse_node("node-1", away).present == "unknown"


def test_first_job_must_be_complete() -> None:
    job = jobs.parse_first_job("host=node-1\ngpus=0,1\nrow=3|COMPLETED|00:00:01|proj\nran=node-1\n")
    jobs.refuse_failed(job, workers=("node-1",), gpus=2)
    for text in (
        "host=node-2\ngpus=0,1\nrow=3|COMPLETED|00:00:01|proj\nran=node-1\n",
        "host=node-1\ngpus=0\nrow=3|COMPLETED|00:00:01|proj\nran=node-1\n",
        # A launch that failed can look like success.
        "host=node-1\ngpus=0,1\nrow=3|COMPLETED|00:00:01|proj\n",
        "host=node-1\ngpus=0,1\nrow=3|FAILED|00:00:01|proj\n",
    ):
        with pytest.raises(NotReadyError):
            jobs.refuse_failed(jobs.parse_first_job(text), workers=("node-1",), gpus=2)
    with pytest.raises(NotReadyError):
        jobs.parse_first_job("host=node-1\n")


def test_only_lines_with_a_reason_are_allowed_in_logs() -> None:
    text = (
        "x: error: Could not open node state file /a: No such file or directory\n"
        "x: error: mpi/pmix_v4: can not load PMIx library\n"
    )
    assert logs.unexpected_lines(text) == ["x: error: mpi/pmix_v4: can not load PMIx library"]
    assert all(logs.ALLOWED.values())


def test_the_default_memory_of_jobs_fits_the_smallest_worker_unless_somebody_chose_it() -> None:
    ours = slurmd.registered_script(host="small", comment="mem_1")
    assert "defmempercpu" in ours
    assert "sed -i" in ours, "it also holds after the next start of slurmctld"
    assert "defmempercpu" not in slurmd.registered_script(host="small", comment="mem_1", fit_memory=False)
