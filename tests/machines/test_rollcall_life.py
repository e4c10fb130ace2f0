"""The reference app's whole life on real slices, as another team would run it, with all that can go wrong meanwhile.

First undisturbed. Then each step on a machine fails half-way and runs twice, and controller and API are killed at
boundaries of steps: the world must be the same after every operation. `make test` kills at a few boundaries, others
in each run; `make soak` at all of them."""

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpuaas_conformance.boundaries import Boundary, Moment
from gpuaas_conformance.proxy import Exchange
from gpuaas_contract.operations import Kind
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_sdk.retry import RetryPolicy
from gpuaas_stack.platform_services import ADMIN_EMAIL
from gpuaas_stack.stack import Stack
from tests.e2e.command_line import CommandLine
from tests.e2e.isolation import IsolatedController, NetworkOfOne
from tests.machines.conftest import ENVIRONMENT, kill_and_start
from tests.machines.rollcall import SLUG, Controllers, controllers, publish
from tests.machines.rollcall_life import NAMES, VERSIONS, Life
from tests.machines.slices import make, release
from tests.support.chance import SEED
from tests.support.kills import end_leases, killing, sample

ROOT = Path(__file__).parents[2]
STUMBLING = [sys.executable, str(Path(__file__).parent / "stumbling_rollcall.py")]
MATRIX = ROOT / "docs" / "reference" / "policy-matrix.md"
UNUSED = {
    "POST /v1/credentials/{credential_id}/deliveries": "where an owner has chosen a stored key for a machine, the "
    "runtime fetches it for any app; test_external does so",
}
"""Routes for controllers that this life has no use for, and why they are not for one app's sake."""
SAMPLED_KILLS = 3
"""Of the controller, and as many of the API."""
LIVES = {
    "stumbling": STUMBLING,
    # One moment of each step in one life: an operation that is killed at all of them would pass its deadline.
    **{f"{victim} killed {moment}": None for victim in ("controller", "API") for moment in Moment},
}
"""Of `make soak`, with the command of the controller where it is another one."""
pytestmark = pytest.mark.timeout(3 * 3600 if "GPUAAS_SOAK" in os.environ else 1_800)
Machines = dict[str, dict[str, Any]]


@dataclass
class Lived:
    states: dict[str, Any]
    kinds: set[str]
    boundaries: list[Boundary]
    exchanges: list[Exchange]


@pytest.fixture(scope="module")
def machines(cli: CommandLine, node: str) -> Iterator[Machines]:
    yield make(cli, *NAMES)
    release(cli, *NAMES, force=True)


@pytest.fixture(scope="module")
def account(cli: CommandLine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    directory = tmp_path_factory.mktemp("rollcall")
    for version in VERSIONS:
        publish(cli, directory, version)
    # Where another user can read it, too.
    path = Path(f"/var/tmp/gpuaas-{ENVIRONMENT}-controller.json")
    path.unlink(missing_ok=True)
    cli.run("service-account", "create", "life-controller", "--app", SLUG, "--file", str(path))
    yield path
    path.unlink()


@pytest.fixture(scope="module")
def program() -> Iterator[Path]:
    """The app's wheel, alone in an empty environment that another user can read."""
    venv = Path(f"/var/tmp/gpuaas-{ENVIRONMENT}-alone")
    shutil.rmtree(venv, ignore_errors=True)
    subprocess.run([ROOT / "scripts" / "install-alone", venv, "apps/reference"], check=True)
    yield venv / "bin" / "reference-app"
    shutil.rmtree(venv)


def live(stack: Stack, cli: CommandLine, machines: Machines, restart_controller: Callable[[], None]) -> Life:
    async def whole_life() -> Life:
        password = stack.settings.admin_password_file.read_text().strip()
        # The API may be away for as long as its start takes on a busy machine.
        patient = RetryPolicy(attempts=60)
        credentials = PasswordCredentials(ADMIN_EMAIL, password)
        async with GpuaasClient(stack.settings.api_url, credentials, retry=patient) as admin:
            life = Life(admin, cli, machines, restart_controller)
            await life.live()
            return life

    return asyncio.run(whole_life())


@pytest.fixture(scope="module")
def undisturbed(stack: Stack, cli: CommandLine, machines: Machines, account: Path, program: Path) -> Lived:
    """By its wheel and its account alone: another user, an empty environment, no network but the way to the API."""
    url = stack.settings.api_url
    with (
        killing(url, kill=lambda boundary: None, strikes=lambda boundary: False) as boundaries,
        NetworkOfOne(f"gpuaas-{ENVIRONMENT}", boundaries.proxy.port) as network,
        IsolatedController(network, account, program) as controller,
    ):
        # Which processes there are is no secret.
        run = str(stack.settings.state_dir / "run")
        assert [path for path in controller.reads(stack.settings.state_dir) if not path.startswith(run)] == []
        assert not network.reaches("127.0.0.1", stack.settings.postgres_port)
        life = live(stack, cli, machines, controller.restart)
    assert life.states["decommissioned"] == life.states["before"]
    return Lived(life.states, life.kinds, boundaries.passed, boundaries.proxy.exchanges)


def test_every_kind_of_operation(undisturbed: Lived) -> None:
    assert undisturbed.kinds == {kind.value for kind in Kind}


def test_every_route_for_controllers_is_used(undisturbed: Lived) -> None:
    """So none of them is there for the sake of one other app."""
    rows = re.findall(r"^\| `(\w+) (/v1/\S+?)(?: \(.*\))?` \| `operation\.(?:work|start)`", MATRIX.read_text(), re.M)
    assert len(rows) > 20
    called = {
        f"{exchange.method} {exchange.path.split('?')[0]}" for exchange in undisturbed.exchanges if exchange.accepted
    }
    unused = {
        f"{method} {path}"
        for method, path in rows
        if not any(re.fullmatch(f"{method} {re.sub('{[a-z_]+}', '[^/]+', path)}", call) for call in called)
    }
    assert unused == set(UNUSED)


@dataclass
class Disturbance:
    controller: set[Boundary]
    """Where the controller is killed."""
    api: set[Boundary]
    command: list[str] | None = None
    after_kill: Callable[[], None] = lambda: None
    """Before the next controller starts."""


def disturbance_of(life: str, boundaries: list[Boundary], stack: Stack) -> Disturbance:
    def after_kill() -> None:
        end_leases(stack.postgres.database_url())

    if life == "sampled":
        drawn = sample(boundaries, 2 * SAMPLED_KILLS, SEED)
        api = sample(sorted(drawn), SAMPLED_KILLS, SEED)
        return Disturbance(drawn - api, api, STUMBLING, after_kill)
    victim, _, moment = life.partition(" killed ")
    at = {boundary for boundary in boundaries if boundary.moment == moment}
    controller, api = (at if victim == killed else set() for killed in ("controller", "API"))
    return Disturbance(controller, api, LIVES[life], after_kill)


@pytest.mark.parametrize("life", list(LIVES) if "GPUAAS_SOAK" in os.environ else ["sampled"])
def test_the_world_is_the_same_after_every_operation_however_it_was_disturbed(
    stack: Stack, cli: CommandLine, machines: Machines, account: Path, undisturbed: Lived, tmp_path: Path, life: str
) -> None:
    disturbance = disturbance_of(life, undisturbed.boundaries, stack)
    wanted = disturbance.controller | disturbance.api
    print(f"seed {SEED}; controller killed at {_words(disturbance.controller)}; API at {_words(disturbance.api)}")
    with controllers(stack, account, tmp_path, disturbance.command) as running:
        lived = disturbed(stack, cli, machines, running, disturbance)
    assert set(lived.boundaries) == wanted, "killed somewhere else"
    for what, state in undisturbed.states.items():
        assert lived.states[what] == state, f"after {what}"


def _words(boundaries: set[Boundary]) -> str:
    return "; ".join(sorted(map(str, boundaries))) or "no boundary"


def disturbed(
    stack: Stack, cli: CommandLine, machines: Machines, running: Controllers, disturbance: Disturbance
) -> Lived:
    def strike(boundary: Boundary) -> None:
        if boundary in disturbance.api:
            kill_and_start(stack, "api")
        else:
            running.restart(signal.SIGKILL, disturbance.after_kill)

    wanted = disturbance.controller | disturbance.api
    with killing(stack.settings.api_url, kill=strike, strikes=wanted.__contains__) as boundaries:
        running.api_url = boundaries.proxy.url
        running.start()
        life = live(stack, cli, machines, running.restart)
        running.end()
    return Lived(life.states, life.kinds, boundaries.struck, boundaries.proxy.exchanges)
