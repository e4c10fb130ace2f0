"""The product's main chain, through the command line and the public API, on real machines."""

import os
import random
import re
import signal
from typing import Any

import pytest

from gpuaas_stack.packs import find_packs
from gpuaas_stack.settings import Settings
from gpuaas_stack.stack import Stack
from tests.e2e.administrator import Platform
from tests.e2e.command_line import CommandLine
from tests.e2e.conftest import APPS
from tests.e2e.isolation import IsolatedController, NetworkOfOne
from tests.support.chance import SEED
from tests.support.waiting import wait_until

Machines = dict[str, dict[str, object]]
SOAK = "GPUAAS_SOAK" in os.environ
SECONDS = 240
STEPS = ["install-packages", "start-database", "run-first-job"]
"""Steps of a deploy at which its controller is killed: `make test` draws one in each run."""
SAME_NODE = ["--place", "controller=one", "--place", "worker=one"]
WHAT_IS_THERE = (
    "dpkg-query -W -f '${Package} ${Version}\\n'; getent passwd; getent group; "
    "systemctl list-unit-files --no-legend; sudo find /etc /usr /opt /srv /var/lib /home -xdev "
    "-not -path '/var/lib/gpuaas*' -not -path '/var/lib/dpkg/*' -not -path '/var/lib/ucf/*' "
    "-not -path '/var/lib/systemd/*' | sort"
)
"""Packages, users, units and files, without the records that dpkg, ucf and systemd keep of them."""


def what_is_there(cli: CommandLine) -> set[str]:
    return set(cli.on("one", WHAT_IS_THERE).splitlines())


def wait_for_step(platform: Platform, instance: str, step: str) -> None:
    operations = platform.operations_of(instance)

    def has_begun() -> bool:
        return any(each.key == step for operation in operations() for each in operation.steps)

    wait_until(has_begun, f"step {step} of {instance} has begun", SECONDS)


def run_as_printed(cli: CommandLine, instance: dict[str, Any]) -> None:
    """Run every command of the access notes in a shell, as a person pastes it."""
    for note in instance["access_notes"]:
        # ssh looks for its configuration in the home directory of the user database, which is not that of the test.
        line = re.sub("^ssh ", 'ssh -F "$HOME/.ssh/gpuaas/config" ', note["command"])
        if line:
            cli.paste(line)


@pytest.fixture
def empty(cli: CommandLine, machines: Machines) -> set[str]:
    return what_is_there(cli)


def test_deploy_use_take_apart_deploy_again(cli: CommandLine, controller: IsolatedController, empty: set[str]) -> None:
    instance = cli.json("instance", "deploy", "slurm", "--name", "first", *SAME_NODE, "--wait")
    assert instance["status"] == "running"
    assert instance["versions"]["observed_runtime"].endswith("22.05.8")
    conditions = {condition["type"]: condition["status"] for condition in instance["conditions"]}
    assert (conditions["Ready"], conditions["VersionDrift"]) == ("true", "false")

    # What `make up` shows of it.
    (pack,) = [pack for pack in find_packs([APPS]) if pack.slug == "slurm"]
    assert pack.demo is not None
    assert cli.on("one", pack.demo.show).count("COMPLETED") == 3

    # A person's own use, with Slurm's own words.
    assert cli.on("one", "sinfo", "--noheader", "--format=%T").split() == ["idle"]
    assert cli.on("one", "srun", "hostname").strip() == "one"
    assert "CUDA_VISIBLE_DEVICES=0,1" in cli.on("one", "srun", "--gres=gpu:2", "env")
    job = cli.on("one", "sbatch", "--wait", "--parsable", "--wrap=hostname").strip()

    def accounted() -> bool:
        return "COMPLETED" in cli.on("one", "sacct", "--jobs", job, "--noheader", "--format=state")

    wait_until(accounted, f"job {job} is in sacct as COMPLETED")
    run_as_printed(cli, instance)

    # The machine cannot be pulled from under the cluster.
    refused = cli.call("allocation", "release", "one", "--yes")
    assert refused.returncode == 5, refused.stderr
    assert "decommission" in refused.stderr

    cli.run("instance", "decommission", "first", "--yes", "--wait")
    receipt = cli.json("instance", "receipt", "first")
    assert receipt["ok"] is True
    checks = [check for member in receipt["members"] for check in member["checks"]]
    assert {"packages", "processes", "users", "ports", "paths"} <= {check["check"] for check in checks}
    assert all(check["ok"] is True and check["command"] and check["at"] for check in checks)
    # The receipt is the app's word; this is ours. Nothing came, nothing went, but for what the person made.
    assert cli.on("one", "ls ~/slurm-*.out && rm ~/slurm-*.out")
    assert what_is_there(cli) == empty

    again = cli.json("instance", "deploy", "slurm", "--name", "first", *SAME_NODE, "--wait")
    assert again["status"] == "running"
    assert again["id"] != instance["id"]
    cli.run("instance", "decommission", again["id"], "--yes", "--wait")


@pytest.mark.parametrize("step", STEPS if SOAK else [random.Random(SEED).choice(STEPS)])
def test_a_controller_killed_in_the_middle_of_a_deploy_converges(
    cli: CommandLine, platform: Platform, controller: IsolatedController, machines: Machines, step: str
) -> None:
    print(f"seed {SEED}: killed at {step}")
    name = f"killed-{step}"
    cli.run("instance", "deploy", "slurm", "--name", name, *SAME_NODE)
    wait_for_step(platform, name, step)
    controller.end(signal.SIGKILL)
    controller.start()
    cli.run("instance", "wait", name)
    assert cli.json("instance", "show", name)["status"] == "running"
    operations = cli.json("operation", "list", "--instance", name)
    assert max(operation["attempt"] for operation in operations) >= 2
    assert cli.on("one", "srun", "hostname").strip() == "one"
    cli.run("instance", "decommission", name, "--yes", "--wait")
    assert cli.json("instance", "receipt", name)["ok"] is True


def test_a_controller_killed_at_the_end_of_a_decommission_converges(
    cli: CommandLine, platform: Platform, controller: IsolatedController, empty: set[str]
) -> None:
    """Kill the controller after its proof, before the platform has it: there is a receipt, and nothing is left."""
    cli.run("instance", "deploy", "slurm", "--name", "ending", *SAME_NODE, "--wait")
    cli.run("instance", "decommission", "ending", "--yes")
    wait_for_step(platform, "ending", "prove-removal")
    controller.end(signal.SIGKILL)
    controller.start()
    cli.run("instance", "wait", "ending", "--for", "decommissioned")
    assert cli.json("instance", "receipt", "ending")["ok"] is True
    assert what_is_there(cli) == empty


def test_a_placement_that_the_app_cannot_serve_changes_nothing(
    cli: CommandLine, machines: Machines, published: str
) -> None:
    without_worker = ["--place", "controller=one"]
    refused = cli.call("instance", "deploy", published, "--name", "headless", *without_worker)
    assert refused.returncode == 2, refused.stderr
    assert "worker: 0 placed" in refused.stderr
    assert all(instance["name"] != "headless" for instance in cli.json("instance", "list"))


def test_decommission_in_the_middle_of_a_deploy_leaves_nothing(
    cli: CommandLine, platform: Platform, controller: IsolatedController, empty: set[str]
) -> None:
    cli.run("instance", "deploy", "slurm", "--name", "halfway", *SAME_NODE)
    wait_for_step(platform, "halfway", "install-packages")
    cli.run("instance", "decommission", "halfway", "--yes", "--wait")
    assert cli.json("instance", "receipt", "halfway")["ok"] is True
    assert what_is_there(cli) == empty


def test_the_controller_reaches_nothing_but_the_api(
    stack: Stack, network: NetworkOfOne, controller: IsolatedController, machines: Machines
) -> None:
    """All other tests here run with this controller, so it needs nothing that it cannot reach."""
    settings: Settings = stack.settings
    assert network.reaches("127.0.0.1", settings.api_port)
    assert not network.reaches("127.0.0.1", settings.postgres_port)
    assert not network.reaches("127.0.0.1", settings.openbao_port)
    for machine in machines.values():
        assert not network.reaches(str(machine["address"]), 22)


def test_people_reach_only_what_they_may(cli: CommandLine, machines: Machines) -> None:
    assert cli.ssh("two", "id", "-un").strip() == "gpuaas"
    assert cli.ssh("two", "sudo", "id", "-un").strip() == "root"
    # From one machine the other one is there, and the host is not.
    assert cli.on("one", "getent", "hosts", "two").split()[0] == machines["two"]["address"]
    gateway = ".".join([*str(machines["one"]["address"]).split(".")[:3], "1"])
    probe = f"timeout 3 bash -c '</dev/tcp/{gateway}/22'; echo $?"
    assert cli.on("one", probe).strip() != "0"
    missing = cli.call("ssh", "nowhere", "--", "true")
    assert missing.returncode == 3
    assert "nowhere" in missing.stderr
