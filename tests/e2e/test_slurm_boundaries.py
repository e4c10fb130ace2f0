"""A cluster's whole life under a controller that stumbles: steps fail half-way and run twice, and the process is killed
between them. It converges to the same cluster, and in the end to the same empty machines; what fails on the way says so
in words and may be tried again.

`make test` draws a step of every kind of operation to fail and some boundaries to be killed at, others in each run;
`make soak` takes all of them."""

import os
import random
from pathlib import Path

import pytest

from gpuaas_conformance.boundaries import END, Boundary, Moment
from gpuaas_stack.stack import Stack
from tests.e2e.administrator import Platform
from tests.e2e.command_line import CommandLine
from tests.e2e.slurm_life import Controller, Life, Machines
from tests.support.chance import SEED
from tests.support.kills import end_leases, killing, sample

KILLS = 3
SOAK = "GPUAAS_SOAK" in os.environ
pytestmark = pytest.mark.timeout(4 * 3600 if SOAK else 1800)
PREPARE = ["record-baseline", "install-packages", "start-munge"]
CLEAN = ["stop-slurmd", "stop-daemons", "remove-packages"]
FAILING = {
    "deploy": [
        *PREPARE,
        *("configure-cluster", "start-database", "start-slurmdbd", "make-associations", "start-slurmctld"),
        "run-first-job",
    ],
    "add": [
        *PREPARE,
        "configure-slurmd-three",
        "start-slurmd-three",
        "register-node-three",
        "run-first-job",
        "save-node-three",
    ],
    "drain": ["drain-three"],
    "resume": ["resume-three"],
    "recover": [*PREPARE, "start-slurmd-two", "register-node-two", "run-first-job", "save-node-two"],
    "replace": [
        *(*PREPARE, "configure-slurmd-one", "join-worker-one", "run-first-job", "save-node-one"),
        *("drain-three", *CLEAN, "delete-node-three", "forget-record"),
    ],
    "remove": ["drain-one", *CLEAN, "delete-node-one"],
    "decommission": ["cancel-jobs", *CLEAN, "delete-node-two", "forget-record"],
}
"""Steps on machines, by kind of operation."""
READY = ["check-machines", "record-baseline", "install-packages", "start-munge"]
GONE = ["delete-nodes", "stop-daemons", "remove-packages", "prove-removal"]
STEPS = {
    "deploy": [
        *READY,
        *("configure-cluster", "start-database", "start-slurmdbd", "make-associations", "start-slurmctld"),
        *("wait-for-workers", "run-first-job"),
    ],
    "add": [*READY, "configure-worker", "wait-for-controller", "join-workers", "run-first-job", "save-worker"],
    "drain": ["drain-node"],
    "remove": ["drain-node", *GONE],
    "decommission": ["cancel-jobs", *GONE],
}
"""Steps that the platform sees."""
BOUNDARIES = [Boundary(kind, step, moment) for kind, steps in STEPS.items() for step in steps for moment in Moment]
BOUNDARIES += [Boundary(kind, END, Moment.DONE) for kind in STEPS]


def one_of_each() -> list[str]:
    draw = random.Random(SEED)
    return [f"{kind}:{draw.choice(steps)}" for kind, steps in FAILING.items()]


EVERYTHING = [f"{kind}:{step}" for kind, steps in FAILING.items() for step in steps]
GROWS = {"deploy", "add"}
CASES: dict[str, tuple[list[str], list[Boundary]]] = {"some": (one_of_each(), BOUNDARIES)}
if SOAK:
    # Two lives, which can be lived beside each other in slots of their own.
    CASES = {
        "failing": (EVERYTHING, []),
        "killed-while-it-grows": ([], [boundary for boundary in BOUNDARIES if boundary.kind in GROWS]),
        "killed-while-it-shrinks": ([], [boundary for boundary in BOUNDARIES if boundary.kind not in GROWS]),
    }


@pytest.mark.parametrize("case", CASES)
def test_a_life_under_a_stumbling_controller(
    stack: Stack,
    cli: CommandLine,
    platform: Platform,
    machines: Machines,
    vacated: None,
    controller_account: Path,
    tmp_path: Path,
    case: str,
) -> None:
    stumbles, boundaries = CASES[case]
    chosen = set(boundaries) if SOAK else sample(boundaries, KILLS, SEED)
    print(f"seed {SEED}\n  fail: {' '.join(stumbles)}\n  killed: {'; '.join(map(str, sorted(chosen)))}")
    life = Life(platform, cli, machines)
    before = life.what_is_there()
    controller = Controller(controller_account, tmp_path, stumbles)

    def kill(boundary: Boundary) -> None:
        # That a lease runs out by itself is seen in test_chain.
        controller.restart(boundary, lambda: end_leases(stack.postgres.database_url()))

    with (
        killing(stack.settings.api_url, kill=kill, strikes=chosen.__contains__) as killed,
        controller.reaching(killed.proxy.url),
    ):
        life.live()
    assert (controller.stumbled, set(killed.struck)) == (set(stumbles), chosen)
    assert life.what_is_there() == before


@pytest.mark.soak
def test_a_worker_whose_machine_goes_down(
    stack: Stack,
    cli: CommandLine,
    platform: Platform,
    machines: Machines,
    vacated: None,
    controller_account: Path,
    tmp_path: Path,
) -> None:
    life = Life(platform, cli, machines)
    with Controller(controller_account, tmp_path, []).reaching(stack.settings.api_url):
        life.begin()
        life.lose_machines()
        life.end()
