"""The smoke suite: a cluster over several machines, used, changed and taken apart as its operator does it.

Through the command line alone, on real machines. Every step prints its time; where one fails, what an operator would
see is printed too.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.e2e.command_line import CommandLine
from tests.e2e.isolation import IsolatedController
from tests.e2e.test_chain import run_as_printed

Machines = dict[str, dict[str, object]]
SPLIT = ["--place", "controller=one", "--place", "worker=two", "--place", "worker=three"]
NAME = "smoke"


class Smoke:
    def __init__(self, cli: CommandLine) -> None:
        self.cli = cli

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        except BaseException:
            print(f"  ✗ {title:44} {time.monotonic() - began:6.1f} s")
            self._explain()
            raise
        print(f"  ✓ {title:44} {time.monotonic() - began:6.1f} s", flush=True)

    def _explain(self) -> None:
        for words in (["instance", "show", NAME], ["instance", "events", NAME]):
            print(self.cli.call(*words).stdout[-6_000:])

    def deploy(self, *place: str) -> dict[str, Any]:
        return dict(self.cli.json("instance", "deploy", "slurm", "--name", NAME, *place, "--wait"))

    def states(self) -> dict[str, str]:
        said = self.cli.ssh("one", "sinfo", "--noheader", "--Node", "--format='%N %T'")
        return dict(line.split() for line in said.splitlines())


def test_a_cluster_over_three_machines(cli: CommandLine, controller: IsolatedController, machines: Machines) -> None:
    smoke = Smoke(cli)
    with smoke.step("deploy, controller and workers apart"):
        instance = smoke.deploy(*SPLIT)
        assert instance["status"] == "running"
        assert smoke.states() == {"two": "idle", "three": "idle"}
    with smoke.step("access: every command as printed"):
        run_as_printed(cli, instance)
    with smoke.step("decommission"):
        cli.run("instance", "decommission", NAME, "--yes", "--wait")
        receipt = cli.json("instance", "receipt", NAME)
        assert receipt["ok"] is True
        assert {member["hostname"] for member in receipt["members"]} == {"one", "two", "three"}
