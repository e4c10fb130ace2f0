"""Node records of slurmctld, in three values; and draining, which never takes unknown for drained."""

import pytest

from gpuaas_sdk.machines.base import CommandResult
from gpuaas_sdk.testing import FakeMachine
from slurm_app.draining import DrainRequest, StillBusyError, ensure_drained
from slurm_app.errors import NotReadyError, RefusedError
from slurm_app.slurm import nodes

from .answers import said

NODE = "NodeName=node-1 Arch=x86_64 Version=22.05.8 State={state} CfgTRES=cpu=2,mem=2G,billing=2,gres/gpu=2 {why}\n"
BY_US = "Reason=gpuaas: drain op_1 [root@2026-11-15T21:25:04] Comment=mem_1"
BY_ALICE = "Reason=fan is loud [alice@2026-11-15T21:25:04] Comment=mem_1"


def node(state: str, why: str = "") -> CommandResult:
    return said(NODE.format(state=state, why=why))


def record(state: str, why: str = "") -> nodes.NodeRecord:
    return nodes.parse_node("node-1", node(state, why))


async def quiet(_: str) -> None:
    return None


@pytest.mark.parametrize(
    ("state", "drained"),
    [
        ("IDLE+DRAIN+DYNAMIC_NORM", "yes"),
        ("MIXED+DRAIN+DYNAMIC_NORM", "no"),
        ("ALLOCATED+DRAIN", "no"),
        ("IDLE+COMPLETING+DRAIN", "no"),
        ("IDLE+DYNAMIC_NORM", "no"),
        ("IDLE*+DRAIN+DYNAMIC_NORM", "unknown"),
        ("DOWN*+DRAIN", "unknown"),
        ("IDLE+DRAIN+NOT_RESPONDING", "unknown"),
    ],
)
def test_only_a_node_that_answers_is_drained(state: str, drained: str) -> None:
    assert record(state).drained == drained


def test_no_answer_of_slurmctld_is_unknown() -> None:
    away = nodes.parse_node("node-1", CommandResult(1, "", "Unable to contact slurm controller"))
    assert (away.present, away.drained) == ("unknown", "unknown")


def test_whose_drain_it_is() -> None:
    ours, theirs = record("IDLE+DRAIN", BY_US), record("IDLE+DRAIN", BY_ALICE)
    assert (ours.drained_by_us, ours.held_by_person) == (True, False)
    assert (theirs.drained_by_us, theirs.held_by_person) == (False, True)
    assert (theirs.gpus, theirs.version, theirs.comment) == (2, "22.05.8", "mem_1")


async def test_a_list_that_could_not_be_read_is_not_an_empty_one() -> None:
    away = FakeMachine(answers={"show node": CommandResult(1, "", "Unable to contact slurm controller")})
    with pytest.raises(NotReadyError):
        await nodes.read_nodes(away)
    with pytest.raises(NotReadyError):
        await nodes.read_jobs(FakeMachine(answers={"squeue": CommandResult(1, "", "no")}), "node-1")


async def test_a_persons_drain_is_never_resumed() -> None:
    machine = FakeMachine(answers={"show node": node("IDLE+DRAIN", BY_ALICE)})
    with pytest.raises(RefusedError, match="alice took node-1 out of service"):
        await nodes.ensure_resumed(machine, "node-1")
    assert machine.steps == {}


async def test_what_is_unknown_is_never_drained_without_force() -> None:
    machine = FakeMachine(answers={"show node": node("DOWN*+DRAIN", BY_US), "squeue": said("")})
    with pytest.raises(StillBusyError) as caught:
        await ensure_drained(machine, "node-1", DrainRequest(0, False, "x"), quiet)
    assert caught.value.code == "node_unknown"
    assert [*machine.steps] == ["drain-node-1"]


async def test_jobs_that_run_are_named_and_left_alone() -> None:
    machine = FakeMachine(
        answers={"show node": node("MIXED+DRAIN", BY_US), "squeue": said("7 bob RUNNING 1:00 train\n")}
    )
    with pytest.raises(StillBusyError, match="7 bob RUNNING") as caught:
        await ensure_drained(machine, "node-1", DrainRequest(0, False, "x"), quiet)
    assert caught.value.retryable
    assert "cancel-jobs-on-node-1" not in machine.steps


async def test_a_node_that_is_not_there_needs_no_drain() -> None:
    machine = FakeMachine(answers={"show node": CommandResult(1, "", "Node node-1 not found")})
    assert await ensure_drained(machine, "node-1", DrainRequest(0, False, "x"), quiet) == {"node": "not there"}
    assert machine.steps == {}


def test_force_takes_the_nodes_name() -> None:
    with pytest.raises(RefusedError, match="confirm: node-1"):
        DrainRequest.of({"force": True}, "node-1", "x")
    assert DrainRequest.of({"force": True, "confirm": "node-1"}, "node-1", "x").force
    assert not DrainRequest.of({}, "node-1", "x").force
