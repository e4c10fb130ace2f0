"""The reference app's whole life on real slices, driven by its own wheel with nothing but its service account."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuaas_stack.stack import Stack
from tests.e2e.command_line import CommandLine
from tests.machines.rollcall import SLUG, SMALL, Controllers, controllers, publish, roll

ALL_OF_IT = (
    "getent passwd; getent group; systemctl list-unit-files --no-legend; sudo ss -Hltn; sudo find /etc /usr /opt "
    "/srv /var/lib /home -xdev -not -path '/var/lib/gpuaas/fence*' -not -path '/var/lib/systemd/*' "
    "-not -name '*-' -not -path /var/lib/gpuaas | sort"
)
SPLIT = ["--place", "controller=rc-1", "--place", "worker=rc-2"]


@pytest.fixture(scope="module")
def machines(cli: CommandLine, node: str) -> Iterator[dict[str, set[str]]]:
    """Three machines, with all that is on them."""
    names = ["rc-1", "rc-2", "rc-3"]
    for name in names:
        cli.json("allocation", "create", "--name", name, *SMALL, "--wait")
    yield {name: what_is_there(cli, name) for name in names}
    for name in names:
        cli.json("allocation", "release", name, "--yes", "--force", "--wait")


@pytest.fixture(scope="module")
def account(cli: CommandLine, tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("rollcall")
    publish(cli, directory)
    path = directory / "service-account.json"
    cli.run("service-account", "create", "rollcall-controller", "--app", SLUG, "--file", str(path))
    return path


@pytest.fixture
def controller(stack: Stack, account: Path, tmp_path: Path) -> Iterator[Controllers]:
    with controllers(stack, account, tmp_path) as made:
        made.start()
        yield made


def what_is_there(cli: CommandLine, machine: str) -> set[str]:
    return set(cli.ssh(machine, ALL_OF_IT).splitlines())


def test_deploy_use_and_take_apart(cli: CommandLine, machines: dict[str, set[str]], controller: Controllers) -> None:
    instance = cli.json("instance", "deploy", SLUG, "--name", "roll", *SPLIT, "--wait")
    assert instance["status"] == "running"
    assert instance["versions"]["observed_runtime"] == "1.0.0"
    seen = roll(cli, "rc-1")
    assert (seen["instance"], seen["motto"]) == (instance["id"], "present")
    assert [(worker["name"], worker["state"]) for worker in seen["workers"]] == [("rc-2", "active")]
    # The token is in a file that only the daemon reads, and nowhere else.
    assert cli.ssh("rc-1", "sudo stat -c '%a %U' /etc/rollcall/token").strip() == "400 rollcall"
    token = cli.ssh("rc-1", "sudo cat /etc/rollcall/token").strip()
    assert len(token) == 40
    everything = controller.log.read_text() + cli.run("operation", "list", "--instance", "roll", "-o", "json")
    assert token not in everything
    assert token not in cli.ssh("rc-1", "sudo journalctl --no-pager -o cat; ps -ef; sudo cat /proc/*/environ")

    cli.run("instance", "decommission", "roll", "--yes", "--wait")
    receipt = cli.json("instance", "receipt", "roll")
    assert receipt["ok"] is True
    assert {check["check"] for check in receipt["members"][0]["checks"]} >= {"units", "port", "processes", "paths"}
    for name in ("rc-1", "rc-2"):
        assert what_is_there(cli, name) == machines[name]
