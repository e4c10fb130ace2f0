"""A deploy looks at its machines first: on an unfit one it ends before anything was changed on any of them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuaas_conformance.machines import WHAT_IS_THERE
from gpuaas_stack.stack import Stack
from tests.e2e.command_line import CommandLine
from tests.machines.rollcall import SLUG, Controllers, controllers, publish
from tests.machines.slices import make, release

NAMES = ["unfit-1", "unfit-2"]
VERSION = "3.0.0"


@pytest.fixture
def controller(
    stack: Stack, cli: CommandLine, node: str, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Controllers]:
    directory = tmp_path_factory.mktemp("unfit")
    publish(cli, directory, VERSION)
    account = directory / "account.json"
    cli.run("service-account", "create", "unfit-controller", "--app", SLUG, "--file", str(account))
    make(cli, *NAMES)
    with controllers(stack, Path(account), directory) as made:
        made.start()
        yield made
    cli.run("service-account", "delete", "unfit-controller", "--yes")
    release(cli, *NAMES, force=True)


def all_there(cli: CommandLine) -> dict[str, list[str]]:
    return {name: cli.on(name, WHAT_IS_THERE).splitlines() for name in NAMES}


def deploy(cli: CommandLine, name: str, *more: str) -> int:
    places = ["--place", "controller=unfit-1", "--place", "worker=unfit-2", "--version", VERSION]
    operator = ["--operator-account", "unfit-controller"]
    return cli.call("instance", "deploy", SLUG, "--name", name, *places, *operator, *more, "--wait").returncode


def explained(cli: CommandLine, name: str) -> dict[str, Any]:
    return dict(cli.json("instance", "explain", name))


@pytest.mark.usefixtures("controller")
def test_an_unfit_machine(cli: CommandLine) -> None:
    cli.on("unfit-2", "sudo mkdir /etc/rollcall")
    before = all_there(cli)
    assert deploy(cli, "unfit") == 7
    found = explained(cli, "unfit")
    assert (found["operation"]["kind"], found["operation"]["error"]["code"]) == ("deploy", "preflight_failed")
    assert "unfit-2 has /etc/rollcall already" in found["operation"]["error"]["detail"]
    (step,) = found["operation"]["steps"]
    assert (step["key"], step["status"]) == ("preflight", "failed")
    assert step["evidence"]["findings"][0]["code"] == "leftovers"
    assert all_there(cli) == before, "not on the machine that was fit, either"

    # The owner ends it, with a receipt that says that nothing is left.
    cli.run("instance", "decommission", "unfit", "--yes", "--wait")
    assert cli.json("instance", "receipt", "unfit")["ok"] is True
    assert all_there(cli) == before, "what was there before is"

    # Or makes the machine fit, and tries again.
    assert deploy(cli, "mended") == 7
    cli.on("unfit-2", "sudo rmdir /etc/rollcall")
    cli.run("operation", "retry", explained(cli, "mended")["operation"]["id"])
    cli.run("instance", "wait", "mended")
    deployed = explained(cli, "mended")["instance"]
    assert deployed["operator"]["state"] == "connected"
    cli.run("instance", "decommission", "mended", "--yes", "--wait")

    # Without the look, the machine itself says no, in the middle.
    cli.on("unfit-2", "sudo mkdir /etc/rollcall")
    assert deploy(cli, "skipped", "--skip-preflight") == 7
    operation = explained(cli, "skipped")["operation"]
    assert operation["error"]["code"] != "preflight_failed"
    assert operation["attempt"] == 1
    cli.run("instance", "decommission", "skipped", "--yes", "--wait")
    assert all_there(cli) == before
