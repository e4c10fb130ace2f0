"""The smoke suite: a cluster over several machines, used, changed and taken apart as its operator does it.

Through the command line and the public API alone, on real machines. Every step prints its time; where one fails, what
an operator would see is printed too.
"""

import asyncio
import random
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from gpuaas_contract.instances import InstanceDeploy, Placement
from gpuaas_contract.operations import Operation, OperationState
from gpuaas_contract.preflights import AppChecks, Preflight, PreflightState
from gpuaas_sdk import GpuaasClient, PasswordCredentials
from gpuaas_stack.platform_services import ADMIN_EMAIL
from gpuaas_stack.stack import Stack
from tests.e2e.command_line import CommandLine
from tests.e2e.isolation import IsolatedController
from tests.e2e.test_chain import run_as_printed
from tests.support.chance import SEED
from tests.support.waiting import wait_until

Machines = dict[str, dict[str, Any]]
T = TypeVar("T")
NAME = "smoke"
SECONDS = 240


class Smoke:
    """One cluster, with `one` as its controller."""

    def __init__(self, stack: Stack, cli: CommandLine, machines: Machines) -> None:
        self.cli = cli
        self.machines = machines
        self._url = stack.settings.api_url
        self._credentials = PasswordCredentials(ADMIN_EMAIL, stack.settings.admin_password_file.read_text().strip())

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        except BaseException:
            print(f"  ✗ {title:50} {time.monotonic() - began:6.1f} s")
            self._explain()
            raise
        print(f"  ✓ {title:50} {time.monotonic() - began:6.1f} s", flush=True)

    def _explain(self) -> None:
        for words in (["instance", "explain", NAME], ["operation", "list", "--instance", NAME]):
            print(self.cli.call(*words).stdout[-6_000:])

    def _api(self, work: Callable[[GpuaasClient], Awaitable[T]]) -> T:
        async def call() -> T:
            async with GpuaasClient(self._url, self._credentials) as client:
                return await work(client)

        return asyncio.run(call())

    def deploy(self, *place: str) -> dict[str, Any]:
        words = [word for each in place for word in ("--place", each)]
        instance = dict(self.cli.json("instance", "deploy", "slurm", "--name", NAME, *words, "--wait"))
        assert instance["status"] == "running", instance
        return instance

    @property
    def instance_id(self) -> str:
        return str(self.cli.json("instance", "show", NAME)["id"])

    def member(self, machine: str) -> str:
        """The live worker on that machine."""
        (found,) = [
            member["id"]
            for member in self.cli.json("instance", "members", NAME)
            if member["allocation_id"] == self.machines[machine]["id"]
            and member["component_key"] == "worker"
            and member["status"] != "removed"
        ]
        return str(found)

    def ask(self, kind: str, machine: str, **wanted: Any) -> Operation:
        instance_id, member_id = self.instance_id, self.member(machine)
        return self._api(lambda api: api.instances.request(instance_id, kind, member_id=member_id, input=wanted))

    def add(self, machine: str, **wanted: Any) -> Operation:
        instance_id, allocation_id = self.instance_id, str(self.machines[machine]["id"])
        bulk = self._api(lambda api: api.instances.add_members(instance_id, "worker", [allocation_id], input=wanted))
        (result,) = bulk.results
        assert result.operation_id is not None, result
        return self.finished(self.operation(result.operation_id))

    def operation(self, operation_id: str) -> Operation:
        return self._api(lambda api: api.operations.get(operation_id))

    def finished(self, operation: Operation) -> Operation:
        wait_until(lambda: self.operation(operation.id).state.is_final, f"{operation.kind} has ended", seconds=SECONDS)
        ended = self.operation(operation.id)
        assert ended.state == OperationState.SUCCEEDED, ended.error
        return ended

    def interrupted(self, operation: Operation, steps: list[str], controller: IsolatedController) -> Operation:
        """The controller is killed in the middle of one of these steps, and started again."""
        step = random.Random(SEED).choice(steps)
        print(f"    killed at {step} (GPUAAS_SEED={SEED})")

        def begun() -> bool:
            return step in {each.key for each in self.operation(operation.id).steps}

        wait_until(begun, f"step {step} has begun", seconds=SECONDS)
        controller.end(signal.SIGKILL)
        controller.start()
        return self.finished(operation)

    def do(self, kind: str, machine: str, **wanted: Any) -> Operation:
        return self.finished(self.ask(kind, machine, **wanted))

    def states(self) -> dict[str, str]:
        said = self.cli.ssh("one", "sinfo", "--noheader", "--Node", "--format='%N %T'")
        return dict(line.split() for line in said.splitlines())

    def preflight(self, *place: str) -> list[str]:
        """The codes of all that stands in the way of a deploy like this."""
        pairs = [each.split("=") for each in place]
        body = InstanceDeploy(
            project_id=str(self.machines["one"]["project_id"]),
            app_slug="slurm",
            name="looked-at",
            placement_intent=[Placement(component_key=k, allocation_id=self.machines[m]["id"]) for k, m in pairs],
        )

        async def look(api: GpuaasClient) -> Preflight:
            asked = await api.preflights.deploy(body)
            while asked.state == PreflightState.RUNNING:
                asked = await api.preflights.get(asked.id, wait=10)
            return asked

        found = self._api(look)
        assert found.app_checks == AppChecks.DONE, found
        return [finding.code for finding in found.findings]

    def submit(self, machine: str) -> str:
        job = self.cli.ssh(
            "one", f"sbatch --parsable --output=/dev/null --nodelist={machine} --wrap='sleep 900'"
        ).strip()
        wait_until(lambda: self.job(job) == "RUNNING", f"job {job} runs on {machine}")
        return job

    def job(self, job: str) -> str:
        return self.cli.ssh("one", f"squeue --noheader --jobs={job} --format=%T 2>/dev/null || true").strip()


def test_smoke(stack: Stack, cli: CommandLine, controller: IsolatedController, machines: Machines) -> None:
    smoke = Smoke(stack, cli, machines)
    with smoke.step("preflight finds what is in the way"):
        cli.ssh("two", "sudo mkdir /etc/slurm && sudo touch /etc/slurm/mine.conf")
        assert smoke.preflight("controller=one", "worker=two") == ["foreign_files"]
        cli.ssh("two", "sudo rm -r /etc/slurm")
        assert smoke.preflight("controller=one", "worker=two") == []
    with smoke.step("deploy, controller and worker apart"):
        instance = smoke.deploy("controller=one", "worker=two")
        assert instance["mode"] == "multi_node"
        assert smoke.states() == {"two": "idle"}
    with smoke.step("access: every command as printed"):
        run_as_printed(cli, instance)
    with smoke.step("add a worker while a job runs on another"):
        job = smoke.submit("two")
        smoke.add("three", features=["fast"])
        assert smoke.states() == {
            "two": "mixed" if machines["two"]["shape"]["cpus"] > 1 else "allocated",
            "three": "idle",
        }
        assert cli.ssh("one", "srun", "--constraint=fast", "hostname").strip() == "three"
    with smoke.step("drain with a running job, and resume"):
        draining = smoke.ask("drain", "two", timeout_seconds=200)
        wait_until(lambda: smoke.states()["two"] == "draining", "the worker is draining")
        assert smoke.job(job) == "RUNNING"
        assert not smoke.operation(draining.id).state.is_final
        cli.ssh("one", "scancel", job)
        smoke.finished(draining)
        assert smoke.states()["two"] == "drained"
        smoke.do("resume", "two")
        assert smoke.states()["two"] == "idle"
    with smoke.step("a person's drain is not undone"):
        cli.ssh("one", "sudo scontrol update nodename=two state=DRAIN reason=mine")
        smoke.do("drain", "two")
        resume = smoke.ask("resume", "two")
        wait_until(lambda: smoke.operation(resume.id).state.is_final, "resume has ended")
        error = smoke.operation(resume.id).error
        assert error is not None
        assert error.code == "held_by_person"
        cli.ssh("one", "sudo scontrol update nodename=two state=RESUME")
        smoke.do("recover", "two")
    with smoke.step("remove, with its controller killed on the way"):
        steps = ["drain-node", "delete-nodes", "stop-daemons", "remove-packages", "prove-removal"]
        receipt = smoke.interrupted(smoke.ask("remove", "three"), steps, controller).result["receipt"]
        assert receipt["ok"] is True
        assert smoke.states() == {"two": "idle"}
        assert cli.ssh("three", "dpkg-query -W 'slurm*' munge 2>/dev/null || true").strip() == ""
    with smoke.step("add the same machine again"):
        smoke.add("three")
        assert smoke.states() == {"two": "idle", "three": "idle"}
    with smoke.step("recover a worker whose slurmd and record are gone"):
        cli.ssh("two", "sudo systemctl disable --now slurmd")
        cli.ssh("one", "sudo scontrol delete nodename=two")
        smoke.do("recover", "two")
        assert smoke.states() == {"two": "idle", "three": "idle"}
    with smoke.step("restart of a worker's machine"):
        cli.run("allocation", "restart", "three", "--force", "--wait")
        wait_until(lambda: smoke.states().get("three") == "idle", "the restarted worker is idle", seconds=SECONDS)
    with smoke.step("replace a worker by the controller's machine"):
        replaced = smoke.do("replace", "three", allocation_id=machines["one"]["id"])
        assert replaced.result["receipt"]["ok"] is True
        assert smoke.states() == {"two": "idle", "one": "idle"}
    with smoke.step("decommission"):
        cli.run("instance", "decommission", NAME, "--yes", "--wait")
        receipt = cli.json("instance", "receipt", NAME)
        assert receipt["ok"] is True
        assert {member["hostname"] for member in receipt["members"]} >= {"one", "two"}
    with smoke.step("redeploy at once, on one machine"):
        again = smoke.deploy("controller=three", "worker=three")
        assert again["mode"] == "single_node"
        assert cli.ssh("three", "srun", "hostname").strip() == "three"
    with smoke.step("health"):
        assert "is UP" in cli.ssh("three", "scontrol", "ping")
        conditions = {each["type"]: each["status"] for each in cli.json("instance", "show", NAME)["conditions"]}
        assert (conditions["Ready"], conditions["Degraded"], conditions["VersionDrift"]) == ("true", "false", "false")
    with smoke.step("decommission"):
        cli.run("instance", "decommission", NAME, "--yes", "--wait")
        assert cli.json("instance", "receipt", NAME)["ok"] is True
