"""The stack stops, starts and survives kills; machines and data are there afterwards."""

import os
import signal

from gpuaas_stack.stack import Stack
from tests.e2e.administrator import PATIENCE
from tests.e2e.command_line import CommandLine
from tests.e2e.isolation import IsolatedController
from tests.support.firewall import firewalls
from tests.support.waiting import wait_until

Machines = dict[str, dict[str, object]]


def test_down_and_up_and_kill_all(
    stack: Stack, cli: CommandLine, controller: IsolatedController, machines: Machines
) -> None:
    cli.run(
        "instance",
        "deploy",
        "slurm",
        "--name",
        "lasting",
        "--place",
        "controller=one",
        "--place",
        "worker=one",
        "--wait",
    )
    stack.down()
    stack.down()
    assert firewalls(stack.settings.environment) == [], "no rule outlives its bridge"
    stack.up()
    stack.up()
    still_works(cli)

    # The guard first: it would start the supervisor again.
    keepers = (stack.supervision.guard(), stack.supervision.running())
    for process in (*keepers, *(state.process for state in stack.supervision.states())):
        assert process is not None
        os.kill(process.pid, signal.SIGKILL)
    wait_until(lambda: stack.supervision.running() is None, "the supervisor is dead")
    assert len(firewalls(stack.settings.environment)) == 1, "a crash leaves the networks closed"
    stack.up()
    still_works(cli)
    cli.run("instance", "decommission", "lasting", "--yes", "--wait")
    assert cli.json("instance", "receipt", "lasting")["ok"] is True


def still_works(cli: CommandLine) -> None:
    assert cli.json("instance", "show", "lasting")["status"] == "running"
    assert cli.json("allocation", "show", "one")["status"] == "active"
    # Through platform and agent: after a kill of all, the agent may be about to connect again.
    way_in = ("ssh", "one", "--", "hostname")
    wait_until(lambda: cli.call(*way_in).stdout.strip() == "one", "the agent is connected again", PATIENCE)
    # The cluster comes back by itself.
    job = ("ssh", "one", "--direct", "--", "timeout", "60", "srun", "hostname")
    wait_until(lambda: cli.call(*job).stdout.strip() == "one", "the cluster runs jobs again", PATIENCE)
