"""A cluster and its controller, for tests that injure both."""

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gpuaas_conformance.boundaries import Boundary
from gpuaas_contract.instances import MemberStatus
from gpuaas_contract.operations import Operation, OperationState
from tests.e2e.administrator import Platform
from tests.e2e.command_line import CommandLine
from tests.e2e.test_chain import WHAT_IS_THERE
from tests.support.waiting import wait_until

Machines = dict[str, dict[str, Any]]
NAME = "hard-life"
SECONDS = 240
MOST_ATTEMPTS = 100
STUMBLING = Path(__file__).parent / "stumbling_slurm.py"


class Controller:
    """Runs one controller process at a time; its state is in its home directory."""

    def __init__(self, account: Path, home: Path, stumbles: list[str]) -> None:
        self._home = home
        self._environment = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(home),
            "GPUAAS_SERVICE_ACCOUNT_FILE": str(account),
            "STUMBLES": " ".join(stumbles),
        }
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def stumbled(self) -> set[str]:
        notes = self._home / "stumbled"
        return set(notes.read_text().split()) if notes.exists() else set()

    @contextmanager
    def reaching(self, api_url: str) -> Iterator[None]:
        self._environment["GPUAAS_API_URL"] = api_url
        self._start()
        try:
            yield
        except BaseException:
            print(f"the controller said:\n{(self._home / 'log').read_text()[-8_000:]}")
            raise
        finally:
            self._kill()

    def restart(self, boundary: Boundary, meanwhile: Callable[[], None]) -> None:
        print(f"    killed: {boundary}", flush=True)
        self._kill()
        meanwhile()
        self._start()

    def _start(self) -> None:
        with (self._home / "log").open("ab") as log:
            command = [sys.executable, str(STUMBLING)]
            self._process = subprocess.Popen(command, env=self._environment, cwd="/", stdout=log, stderr=log)

    def _kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait(timeout=60)


class Life:
    """One cluster with its controller on `one`, through the command line and the public API."""

    instance_id = ""

    def __init__(self, platform: Platform, cli: CommandLine, machines: Machines) -> None:
        self.cli = cli
        self.machines = machines
        self.platform = platform

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            yield
        except BaseException:
            print(f"  ✗ {title:50} {time.monotonic() - began:6.1f} s")
            for words in (["instance", "explain", NAME], ["operation", "list", "--instance", NAME]):
                print(self.cli.call(*words).stdout[-6_000:])
            raise
        print(f"  ✓ {title:50} {time.monotonic() - began:6.1f} s", flush=True)

    def member(self, machine: str) -> str:
        """Return the live worker on a machine."""
        members = self.platform.ask(lambda api: api.instances.members(self.instance_id).all())
        (found,) = [
            member.id
            for member in members
            if member.allocation_id == self.machines[machine]["id"]
            and member.component_key == "worker"
            and member.status != MemberStatus.REMOVED
        ]
        return found

    def ask(self, kind: str, machine: str, **wanted: Any) -> Operation:
        member_id = self.member(machine)
        return self.platform.ask(
            lambda api: api.instances.request(self.instance_id, kind, member_id=member_id, input=wanted)
        )

    def ask_to_add(self, machine: str) -> Operation:
        allocation_id = str(self.machines[machine]["id"])
        bulk = self.platform.ask(lambda api: api.instances.add_members(self.instance_id, "worker", [allocation_id]))
        (result,) = bulk.results
        assert result.operation_id is not None, result
        return self.operation(result.operation_id)

    def do(self, kind: str, machine: str, **wanted: Any) -> Operation:
        return self.finished(self.ask(kind, machine, **wanted))

    def operation(self, operation_id: str) -> Operation:
        return self.platform.ask(lambda api: api.operations.get(operation_id))

    def states(self) -> dict[str, str]:
        said = self.cli.on("one", "sinfo", "--noheader", "--Node", "--format='%N %T'")
        return dict(line.split() for line in said.splitlines())

    def submit(self, machine: str) -> str:
        words = f"sbatch --parsable --output=/dev/null --nodelist={machine} --wrap='sleep 900'"
        job = self.cli.on("one", words).strip()
        runs = f"squeue --noheader --jobs={job} --format=%T"
        wait_until(lambda: self.cli.on("one", runs).strip() == "RUNNING", f"job {job} runs on {machine}", SECONDS)
        return job

    def operations(self) -> list[Operation]:
        return self.platform.ask(lambda api: api.operations.list(instance_id=self.instance_id).all())

    def settle(self) -> set[str]:
        """Retry failed operations and return their kinds: a deploy first, which retries the members that failed with
        it, then the oldest failure."""
        kinds: set[str] = set()
        while True:
            wait_until(lambda: all(o.state.is_final for o in self.operations()), "nothing is under way", 1_200, 0.5)
            failed = [operation for operation in self.operations() if operation.state == OperationState.FAILED]
            if not failed:
                return kinds
            for operation in failed:
                assert operation.error is not None
                assert re.fullmatch("[a-z][a-z_]+", operation.error.code), operation
                assert len(operation.error.detail) > 10, operation
                assert "retry" in [action.action for action in operation.allowed_actions], operation
            first = min(failed, key=lambda operation: (operation.kind != "deploy", str(operation.ended_at)))
            assert first.attempt < MOST_ATTEMPTS, first
            print(f"    {first.kind} failed, once more: {first.error}")
            self.retry(first)
            kinds.add(first.kind)

    def retry(self, operation: Operation) -> None:
        self.platform.ask(lambda api: api.operations.retry(operation.id))

    def what_is_there(self) -> dict[str, set[str]]:
        return {machine: set(self.cli.on(machine, WHAT_IS_THERE).splitlines()) for machine in self.machines}

    def live(self) -> None:
        self.begin()
        with self.step("add"):
            self.finished(self.ask_to_add("three"))
            self.expect(two="idle", three="idle")
        with self.step("drain"):
            self.do("drain", "three")
            self.expect(two="idle", three="drained")
        with self.step("resume"):
            self.do("resume", "three")
            self.expect(two="idle", three="idle")
        with self.step("recover"):
            self.do("recover", "two")
            self.expect(two="idle", three="idle")
        with self.step("replace a worker by one beside the controller"):
            self.do("replace", "three", allocation_id=self.machines["one"]["id"])
            self.expect(two="idle", one="idle")
        with self.step("remove the worker beside the controller"):
            self.do("remove", "one")
            self.expect(two="idle")
        self.end()

    def begin(self) -> None:
        with self.step("deploy"):
            placed = ["--place", "controller=one", "--place", "worker=two"]
            self.instance_id = str(self.cli.json("instance", "deploy", "slurm", "--name", NAME, *placed)["id"])
            assert self.settle() <= {"deploy"}, "a retry of the deploy is all that it takes"
            self.expect(two="idle")

    def end(self) -> None:
        with self.step("decommission"):
            self.finished(self.platform.ask(lambda api: api.instances.request(self.instance_id, "decommission")))
            assert self.cli.json("instance", "receipt", NAME)["ok"] is True

    def lose_machines(self) -> None:
        """Stop a worker's machine during its add, then during its drain; its node starts it again. No operation may
        succeed early; failed ones are retried."""
        with self.step("add, and its machine goes down"):
            adding = self.ask_to_add("three")
            wait_until(lambda: "install-packages" in self.step_keys(adding), "packages are being installed", SECONDS)
            self.power_off("three")
            self.finished(adding)
            self.expect(two="idle", three="idle")
        with self.step("drain, and its machine goes down"):
            job = self.submit("three")
            draining = self.ask("drain", "three", timeout_seconds=5)
            wait_until(lambda: self.states()["three"].startswith("drain"), "the worker takes no new jobs", SECONDS)
            self.power_off("three")
            wait_until(lambda: self.operation(draining.id).state.is_final, "the drain has ended", SECONDS)
            self.cli.on("one", f"scancel {job} || true")
            self.finished(draining)
            self.expect(two="idle", three="drained")
            self.do("resume", "three")
            self.expect(two="idle", three="idle")

    def expect(self, **states: str) -> None:
        """Wait for exactly these node states; a job that just ran may still be completing."""
        wait_until(lambda: self.states() == states, f"the nodes are {states}", SECONDS, 0.5)

    def step_keys(self, operation: Operation) -> list[str]:
        return [step.key for step in self.operation(operation.id).steps]

    def power_off(self, machine: str) -> None:
        instance = str(self.machines[machine]["id"]).replace("_", "-")
        subprocess.run(["lxc", "stop", "--force", instance], check=True, capture_output=True)

    def finished(self, operation: Operation) -> Operation:
        self.settle()
        ended = self.operation(operation.id)
        assert ended.state == OperationState.SUCCEEDED, ended
        return ended
