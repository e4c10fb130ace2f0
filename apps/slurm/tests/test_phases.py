from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

import gpuaas_sdk
import slurm_app
from gpuaas_contract.base import JsonObject
from gpuaas_sdk import CommandResult, OperationContext, OperationFailed, Phase
from gpuaas_sdk.testing import FakeMachine, defined_again
from slurm_app.absent import AbsentMachine
from slurm_app.decommission_phases import DECOMMISSION_PHASES
from slurm_app.errors import NotReadyError, RefusedError
from slurm_app.phases import CONTROLLER_PHASES, FIT, PREPARE_PHASES, ensure_munge_running
from slurm_app.scope import Scope
from slurm_app.slurm.roles import Role

from .answers import FACTS, SLURMD_C, said
from .memory_platform import CONTROLLER, WORKER, MemoryPlatform, evidence_of

DIGEST = "sha256:" + "0" * 64


@dataclass
class Step:
    message: str = ""
    evidence: dict[str, Any] = field(default_factory=dict)


class Operation:
    def __init__(self) -> None:
        self.steps: dict[str, Step] = {}

    @asynccontextmanager
    async def step(self, key: str, title: str) -> AsyncIterator[Step]:
        assert title
        self.steps[key] = Step()
        yield self.steps[key]


async def run_phases(operation: Operation, given: Scope, phases: Iterable[Phase[Scope]]) -> dict[str, JsonObject]:
    return await gpuaas_sdk.run_phases(cast(OperationContext, operation), given, phases)


def machine(**changes: Any) -> FakeMachine:
    facts = FACTS.replace("node-1", changes.get("hostname", "node-1"))
    answers: dict[str, CommandResult | Exception] = {
        "slurmd -C": said(facts + SLURMD_C),
        "os-release": said(facts),
        "getent passwd gpuaas": said("10000\nend\n"),
        "show node": said("NodeName=node-1 Arch=x86_64 State=IDLE CfgTRES=cpu=2,gres/gpu=2 Comment=mem_1 \n"),
        "echo absent": said("installed\n"),
        "install-packages": said("missing=\nadded=37\n"),
        '"$daemon" -V': said("slurmctld=slurm-wlm 22.05.8\nslurmd=slurm-wlm 22.05.8\n"),
        "assoc_mgr": said("proj/gpuaas\n"),
        "run-first-job": said("host=node-1\ngpus=0,1\nrow=3|COMPLETED|00:00:01|proj\nran=node-1\n"),
    }
    return FakeMachine(answers=answers, **changes)


def scope(controller: FakeMachine, *workers: FakeMachine, **changes: Any) -> Scope:
    return Scope("demo", "main", "proj", controller, tuple(workers), DIGEST, **changes)


@pytest.fixture
def one() -> FakeMachine:
    return machine()


@pytest.fixture
def platform(tmp_path: Path, one: FakeMachine) -> MemoryPlatform:
    """Of an instance with controller and worker on one machine."""
    platform = MemoryPlatform(tmp_path, DIGEST)
    for component in (CONTROLLER, WORKER):
        platform.place(component, one)
    return platform


async def test_deploy_reports_every_phase_with_evidence(platform: MemoryPlatform) -> None:
    deploy = await platform.deploy()
    phases = [phase.key for phase in CONTROLLER_PHASES]
    assert [step.key for step in deploy.steps] == [*phases, "map-people", "wait-for-workers", "run-first-job"]
    evidence = evidence_of(deploy)
    assert evidence["run-first-job"]["batch_state"] == "COMPLETED"
    assert evidence["install-packages"]["node-1"]["roles"] == ["controller", "worker"]


async def test_associations_come_before_slurmctld_and_the_barrier_before_the_job(
    platform: MemoryPlatform, one: FakeMachine
) -> None:
    await platform.deploy()
    order = [*one.steps]
    assert order.index("make-associations") < order.index("start-slurmctld") < order.index("join-worker-node-1")
    assert order[-1] == "run-first-job"


async def test_the_controllers_phases_need_no_worker() -> None:
    results = await run_phases(Operation(), scope(machine()), CONTROLLER_PHASES)
    assert list(results)[-1] == "start-slurmctld"


async def test_recover_does_not_start_the_controllers_daemons(platform: MemoryPlatform, one: FakeMachine) -> None:
    await platform.deploy()
    one.steps.clear()
    await platform.run("recover", platform.member_on(one))
    assert not {"start-slurmctld", "start-database"} & {*one.steps}
    # Until then slurmctld would not know it any more after a crash.
    name, script = list(one.steps.items())[-1]
    assert name == "save-node-node-1"
    assert f"--quiet {platform.member_on(one).id} /var/lib/slurm/slurmctld/node_state" in script


async def test_add_does_not_start_the_controllers_daemons(platform: MemoryPlatform, one: FakeMachine) -> None:
    await platform.deploy()
    one.steps.clear()
    two = machine(hostname="node-2", address="10.0.0.2", allocation_id="alc_2")
    member = platform.place(WORKER, two)
    one.answers["show node"] = said(
        f"NodeName=node-2 Arch=x86_64 State=IDLE CfgTRES=cpu=2,gres/gpu=2 Comment={member.id} \n"
    )
    one.answers["run-first-job"] = said("host=node-2\ngpus=0,1\nrow=3|COMPLETED|00:00:01|proj\nran=node-2\n")
    await platform.run("add", member)
    assert {"start-munge", "start-slurmd-node-2"} <= {*two.steps}
    assert not {"start-slurmctld", "start-database"} & {*one.steps, *two.steps}
    name, script = list(one.steps.items())[-1]
    assert name == "save-node-node-2"
    assert f"--quiet {member.id} /var/lib/slurm/slurmctld/node_state" in script


async def test_decommission_stops_slurmd_before_the_record_is_deleted() -> None:
    one = FakeMachine()
    await run_phases(Operation(), scope(one, one), DECOMMISSION_PHASES)
    order = [*one.steps]
    assert order == ["cancel-jobs", "stop-slurmd", "delete-node-node-1", "stop-daemons", "remove-packages"]


async def test_an_incomplete_teardown_keeps_the_record_and_reports_the_receipt(
    platform: MemoryPlatform, one: FakeMachine
) -> None:
    with pytest.raises(OperationFailed) as caught:
        await platform.run("decommission")
    assert caught.value.code == "teardown_unverified"
    assert caught.value.retryable
    receipt = caught.value.result["receipt"]
    assert [(member["hostname"], member["clean"]) for member in receipt["members"]] == [("node-1", False)] * 2
    assert evidence_of(platform.last)["prove-removal"]["receipt"] == receipt
    assert "forget-record" not in one.steps


async def test_a_failing_phase_ends_the_run_with_its_words() -> None:
    async def fail(_: Scope) -> dict[str, Any]:
        raise NotReadyError("x", "cannot x: y")

    operation = Operation()
    with pytest.raises(OperationFailed, match="cannot x: y"):
        await run_phases(operation, scope(machine()), [Phase("a", "A", fail), *CONTROLLER_PHASES])
    assert list(operation.steps) == ["a"]


def test_same_node_is_one_machine_with_two_roles() -> None:
    one = machine()
    made = scope(one, machine())
    assert made.machines == (one,)
    assert made.roles_of(one) == {Role.CONTROLLER, Role.WORKER}


async def test_split_needs_one_munge_key_and_different_names() -> None:
    one, two = machine(), machine(hostname="node-2", address="10.0.0.2", allocation_id="alc_2")
    with pytest.raises(RefusedError, match="munge key"):
        await ensure_munge_running(scope(one, two))
    made = scope(one, two, munge_key=b"k")
    assert [made.roles_of(m) for m in made.machines] == [{Role.CONTROLLER}, {Role.WORKER}]
    with pytest.raises(RefusedError, match="same host name"):
        scope(one, machine(allocation_id="alc_2"), munge_key=b"k")


@pytest.mark.parametrize(
    "changes",
    [{"hostname": "a b"}, {"hostname": "-x"}, {"address": "10.0.0.1;id"}, {"hostname": "node-1\n"}],
)
def test_machines_with_bad_names_are_refused(changes: dict[str, str]) -> None:
    with pytest.raises(RefusedError):
        scope(machine(**changes))


async def test_an_add_prepares_only_the_workers_machine() -> None:
    one, two = machine(), machine(hostname="node-2", address="10.0.0.2", allocation_id="alc_2")
    made = scope(one, two, munge_key=b"k", targets=(two,))
    await run_phases(Operation(), made, PREPARE_PHASES)
    assert one.steps == {}
    assert [*two.steps] == ["record-baseline", "install-packages", "start-munge"]


async def test_clocks_and_user_ids_must_agree() -> None:
    one, two = machine(), machine(hostname="node-2", address="10.0.0.2", allocation_id="alc_2")
    facts_of_two = FACTS.replace("node-1", "node-2")
    two.answers["os-release"] = said(facts_of_two.replace("clock=1700000000", "clock=1700000100"))
    with pytest.raises(OperationFailed, match="clocks differ") as caught:
        await run_phases(Operation(), scope(one, two, munge_key=b"k"), [FIT])
    assert caught.value.code == "clock_skew"
    two.answers["os-release"] = said(facts_of_two)
    two.answers["getent passwd gpuaas"] = said("10001\nend\n")
    with pytest.raises(OperationFailed, match="different ids"):
        await run_phases(Operation(), scope(one, two, munge_key=b"k"), [FIT])
    two.answers["os-release"] = said(facts_of_two + "uid_slurm=997\n")
    with pytest.raises(OperationFailed, match="uid 997"):
        await run_phases(Operation(), scope(one, two, munge_key=b"k"), [FIT])


async def test_a_worker_that_cannot_track_jobs_as_the_cluster_does_is_refused() -> None:
    one, two = machine(), machine(hostname="node-2", address="10.0.0.2", allocation_id="alc_2")
    two.answers["os-release"] = said(FACTS.replace("node-1", "node-2"))
    one.answers["ProctrackType"] = said("proctrack/cgroup\n")
    with pytest.raises(OperationFailed, match="linuxproc"):
        await run_phases(Operation(), scope(one, two, munge_key=b"k", targets=(two,)), [FIT])


async def test_a_machine_that_does_not_answer_keeps_no_other_from_being_cleaned(
    platform: MemoryPlatform, one: FakeMachine
) -> None:
    platform.place(WORKER, AbsentMachine("alc_2", "node-2", "it is released"))
    with pytest.raises(OperationFailed) as caught:
        await platform.run("decommission")
    assert caught.value.code == "teardown_unverified"
    assert [*one.steps][-1] == "remove-packages"
    receipts = {each["hostname"]: each for each in caught.value.result["receipt"]["members"]}
    assert {check["found"] for check in receipts["node-2"]["checks"]} == {"unknown: it is released"}


async def test_a_drain_that_slurmctld_refused_is_no_broken_worker(platform: MemoryPlatform, one: FakeMachine) -> None:
    await platform.deploy()
    one.answers = {"squeue": CommandResult(1, "", "busy"), **one.answers}
    with pytest.raises(OperationFailed) as caught:
        await platform.run("drain", platform.member_on(one), {"timeout_seconds": 0})
    assert (caught.value.code, caught.value.retryable, caught.value.member_usable) == ("jobs_still_running", True, True)
    with pytest.raises(OperationFailed, match="confirm") as unconfirmed:
        await platform.run("drain", platform.member_on(one), {"force": True})
    assert unconfirmed.value.member_usable


def test_the_app_uses_the_kit_of_the_sdk() -> None:
    assert defined_again(slurm_app) == []
