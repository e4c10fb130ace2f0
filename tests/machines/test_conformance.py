"""The conformance kit passes the reference app and catches controllers that break a rule, one of each family.

`make test` catches one of them, another in each run; `make soak` catches all."""

import json
import os
import random
import secrets
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuaas_stack.stack import Stack
from tests.e2e.command_line import CommandLine
from tests.machines.rollcall import APP, SLUG, Controllers
from tests.machines.slices import make, release
from tests.support.chance import SEED

KIT = Path(sys.executable).parent / "gpuaas-conformance"
BROKEN = Path(__file__).parent / "broken_rollcall.py"
STUMBLING = Path(__file__).parent / "stumbling_rollcall.py"
FAMILIES = {
    "unannounced": ("plain", "announced"),
    "leaky": ("plain", "secret-kept"),
    "careless": ("plain", "secret-on-machine"),
    "unfenced": ("plain", "fenced"),
    "buggy": ("refused", "fails-in-words"),
    "greedy": ("others", "others-kept"),
    "stubborn": ("plain", "teardown"),
    "liar": ("plain", "teardown"),
    "hopeful": ("plain", "ready-last"),
    "forgetful": ("killed", "killed-after-effect"),
    "hasty": ("killed", "unknown-is-not-no"),
    "deaf": ("paused", "lease-lost"),
    "silent": ("paused", "heartbeats"),
}
"""How it is broken, in which scenario that shows, and which check says so."""
SAMPLE = sorted(FAMILIES if "GPUAAS_SOAK" in os.environ else [random.Random(SEED).choice(sorted(FAMILIES))])


@pytest.fixture(scope="module")
def machines(cli: CommandLine, node: str) -> Iterator[list[str]]:
    names = ["conform-1", "conform-2"]
    make(cli, *names)
    yield names
    release(cli, *names, force=True)


def conformance(
    stack: Stack, machines: list[str], *words: str, log: Path, project: str = "research"
) -> tuple[int, dict[str, Any]]:
    settings = stack.settings
    where = ["--api-url", settings.api_url, "--password-file", str(settings.admin_password_file), "--log", str(log)]
    which = ["--app", str(APP), "--project", project, "--machines", ",".join(machines), "--seed", str(SEED)]
    # Programs of the app's pack are beside the kit.
    environment = {**os.environ, "PATH": f"{KIT.parent}:{os.environ['PATH']}"}
    done = subprocess.run(
        [KIT, "run", "--json", *where, *which, *words], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode in {0, 1}, (
        f"{done.stdout}\n{done.stderr}\n{log.read_text()[-5_000:] if log.exists() else ''}"
    )
    return done.returncode, json.loads(done.stdout)


def test_the_reference_app_keeps_every_rule(
    stack: Stack, cli: CommandLine, machines: list[str], tmp_path: Path
) -> None:
    accounts = cli.json("service-account", "list")
    code, result = conformance(stack, machines, log=tmp_path / "log", project="acme/research")
    assert cli.json("service-account", "list") == accounts, "the kit leaves no account"
    assert left_by_the_kit(cli) == []
    verdicts = {check["check"]: check["verdict"] for check in result["checks"]}
    assert set(verdicts.values()) == {"kept"}, json.dumps(result, indent=1)
    assert (code, result["ok"]) == (0, True)


@pytest.mark.soak
def test_every_step_may_fail_half_way_and_run_twice(stack: Stack, machines: list[str], tmp_path: Path) -> None:
    """Also a deploy that is pre-empted: the machines end as they would have without that.

    In `make test`, test_rollcall_life does so with every operation."""
    command = f"{sys.executable} {STUMBLING}"
    words = ["--controller", command, "--scenario", "plain", "--scenario", "pre-empted"]
    code, result = conformance(stack, machines, *words, log=tmp_path / "log")
    assert code == 0, json.dumps(result, indent=1)


@pytest.mark.parametrize("broken", SAMPLE)
def test_a_broken_controller_is_caught(
    stack: Stack, cli: CommandLine, machines: list[str], tmp_path: Path, broken: str
) -> None:
    print(f"seed {SEED}")
    scenario, check = FAMILIES[broken]
    command = f"{sys.executable} {BROKEN} {broken}"
    log = tmp_path / "log"
    code, result = conformance(stack, machines, "--controller", command, "--scenario", scenario, log=log)
    left = left_by_the_kit(cli)
    clean_up(stack, cli, machines, tmp_path)
    verdicts = {row["check"]: row["verdict"] for row in result["checks"]}
    assert (code, verdicts[check]) == (1, "BROKEN"), json.dumps(result, indent=1)
    assert left == [], "whatever the controller is worth, the kit leaves no instance"


def left_by_the_kit(cli: CommandLine) -> list[dict[str, Any]]:
    return [each for each in cli.json("instance", "list") if each["status"] != "decommissioned"]


def clean_up(stack: Stack, cli: CommandLine, machines: list[str], tmp_path: Path) -> None:
    """By a controller that is not broken, also what a broken one has left behind without saying so."""
    if all(each["app_slug"] != SLUG for each in cli.json("entitlement", "list")):
        cli.run("entitlement", "grant", "acme", SLUG)
    account = tmp_path / "service-account.json"
    cli.run("service-account", "create", f"cleaner-{secrets.token_hex(4)}", "--app", SLUG, "--file", str(account))
    cleaner = Controllers(stack.settings.api_url, account, tmp_path / "cleaner.log")
    cleaner.start()
    try:
        for instance in cli.json("instance", "list"):
            if instance["status"] != "decommissioned":
                cli.run("instance", "decommission", instance["id"], "--yes", "--wait")
        if any("rollcall" in cli.on(machine, "getent passwd") for machine in machines):
            # As the kit has placed it: a worker that is still there goes only with a worker.
            places = ["--place", f"controller={machines[0]}", "--place", f"worker={machines[1]}"]
            made = cli.json("instance", "deploy", SLUG, "--name", "cleaner", *places, "--wait")
            cli.run("instance", "decommission", made["id"], "--yes", "--wait")
    finally:
        cleaner.end()
