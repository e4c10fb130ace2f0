"""The smoke suite: a cluster over several machines, used, changed and taken apart as its operator does it.

Through the command line and the public API alone, on real machines. Every step prints its time; where one fails, what
an operator would see is printed too.
"""

import base64
import json
import random
import re
import shlex
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from gpuaas_conformance.machines import WHAT_IS_THERE
from gpuaas_sdk.bundles.building import Apt, cache_directory, find_sources
from gpuaas_stack.stack import Stack
from tests.e2e.command_line import CommandLine
from tests.e2e.isolation import IsolatedController
from tests.e2e.recorder import Recorder
from tests.e2e.test_chain import run_as_printed
from tests.support.chance import SEED
from tests.support.waiting import wait_until

Machines = dict[str, dict[str, Any]]
Operation = dict[str, Any]
NAME = "smoke"
SECONDS = 240
FINAL = {"succeeded", "failed", "cancelled"}


# All that can be wrong with a machine, at once.
IN_THE_WAY = """
set -e
mkdir -p /etc/slurm /tmp/other/DEBIAN
touch /etc/slurm/mine.conf
printf '%s\\n' 'Package: slurm-wlm' 'Version: 1' 'Architecture: all' 'Maintainer: T <t@example.org>' \\
    'Description: another Slurm' >/tmp/other/DEBIAN/control
dpkg-deb --build /tmp/other /tmp/other.deb
dpkg --install /tmp/other.deb
systemd-run --unit=taken systemd-socket-activate --listen=6818 /bin/cat
"""
OUT_OF_THE_WAY = """
set -e
rm -r /etc/slurm /tmp/other /tmp/other.deb
dpkg --purge slurm-wlm
systemctl stop taken
"""
# Its clock by libfaketime, for all that sshd starts: what the app's look asks. The machine's and the host's stay right.
CLOCK_WRONG = """
set -e
dpkg --install /tmp/libfaketime.deb
echo "SetEnv LD_PRELOAD=$(dpkg -L libfaketime | grep '/libfaketime[.]so[.]1$') FAKETIME=+1h" \\
    >/etc/ssh/sshd_config.d/00-faketime.conf
systemctl reload ssh
"""
CLOCK_RIGHT = """
set -e
rm /tmp/libfaketime.deb /etc/ssh/sshd_config.d/00-faketime.conf
systemctl reload ssh
dpkg --purge libfaketime
"""


class Smoke:
    """One cluster with its controller on `one`."""

    def __init__(self, cli: CommandLine, machines: Machines, recorder: Recorder) -> None:
        self.cli = cli
        self.recorder = recorder
        self.machines = machines

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        began = time.monotonic()
        try:
            with self.recorder.step(title):
                yield
        except BaseException:
            print(f"  ✗ {title:50} {time.monotonic() - began:6.1f} s")
            self._explain()
            raise
        print(f"  ✓ {title:50} {time.monotonic() - began:6.1f} s", flush=True)

    def _explain(self) -> None:
        for words in (["instance", "explain", NAME], ["operation", "list", "--instance", NAME]):
            print(self.cli.call(*words).stdout[-6_000:])

    def deploy(self, *place: str, **wanted: Any) -> dict[str, Any]:
        words = [word for each in place for word in ("--place", each)]
        instance = dict(
            self.cli.json("instance", "deploy", "slurm", "--name", NAME, *words, *_inputs(wanted), "--wait")
        )
        assert instance["status"] == "running", instance
        self.recorder.note("versions", **instance["versions"])
        operations = self.cli.json("operation", "list", "--instance", instance["id"])
        (deployed,) = [operation for operation in operations if operation["kind"] == "deploy"]
        self.recorder.note("first_job", **deployed["result"]["first_job"])
        return instance

    def ask(self, verb: str, *words: str, **wanted: Any) -> Operation:
        """Request an operation on one worker with `gpuaas member`, without waiting for it."""
        asked = self.cli.json("member", verb, NAME, *words, *_inputs(wanted))
        # Replacing one is an operation; the other verbs take many members and have a result for each.
        return self.operation(asked["results"][0]["operation_id"] if "results" in asked else asked["id"])

    def operation(self, operation_id: str) -> Operation:
        return dict(self.cli.json("operation", "show", operation_id))

    def ended(self, operation: Operation) -> Operation:
        self.cli.call("operation", "watch", operation["id"], "--timeout", str(SECONDS), timeout=SECONDS + 60)
        found = self.operation(operation["id"])
        assert found["state"] in FINAL, found
        return found

    def finished(self, operation: Operation) -> Operation:
        ended = self.ended(operation)
        assert ended["state"] == "succeeded", ended["error"]
        if "receipt" in ended["result"]:
            self.recorder.note_receipt(ended["result"]["receipt"], of=f"{ended['kind']} {ended['id']}")
        return ended

    def do(self, verb: str, *words: str, **wanted: Any) -> Operation:
        return self.finished(self.ask(verb, *words, **wanted))

    def interrupted(self, operation: Operation, steps: list[str], controller: IsolatedController) -> Operation:
        """Kill the controller during one of these steps, and start it again."""
        step = random.Random(SEED).choice(steps)
        print(f"    killed at {step} (GPUAAS_SEED={SEED})")

        def begun() -> bool:
            return step in {each["key"] for each in self.operation(operation["id"])["steps"]}

        wait_until(begun, f"step {step} has begun", seconds=SECONDS)
        controller.end(signal.SIGKILL)
        controller.start()
        return self.finished(operation)

    def states(self) -> dict[str, str]:
        said = self.cli.on("one", "sinfo", "--noheader", "--Node", "--format='%N %T'")
        return dict(line.split() for line in said.splitlines())

    def munge_keys(self, *machines: str) -> set[str]:
        return {self.cli.on(name, "sudo sha256sum /etc/munge/munge.key").split()[0] for name in machines}

    def preflight(self, *place: str) -> dict[str, str]:
        """Run a preflight of a deploy and return its findings by code."""
        words = [word for each in place for word in ("--place", each)]
        looked = self.cli.call("instance", "preflight", "slurm", "--name", "looked-at", *words, "-o", "json")
        found = json.loads(looked.stdout)
        assert found["app_checks"] == "done", found
        assert looked.returncode == (2 if found["findings"] else 0), looked.stderr
        return {finding["code"]: finding["message"] for finding in found["findings"]}

    def submit(self, machine: str) -> str:
        job = self.cli.on(
            "one", f"sbatch --parsable --output=/dev/null --nodelist={machine} --wrap='sleep 900'"
        ).strip()
        wait_until(lambda: self.job(job) == "RUNNING", f"job {job} runs on {machine}", SECONDS)
        return job

    def job(self, job: str) -> str:
        return self.cli.on("one", f"squeue --noheader --jobs={job} --format=%T 2>/dev/null || true").strip()


def fetch_faketime(stack: Stack) -> bytes:
    """Fetch a package from the archive once, as for the bundle; then from the cache."""
    assert stack.image is not None
    apt = Apt(cache_directory() / "apt", stack.image.dpkg_status, find_sources())
    kept = sorted(apt.archives.glob("libfaketime_*.deb"))
    if not kept:
        apt.run("update")
        kept = [deb for deb in apt.fetch(["libfaketime"]) if deb.name.startswith("libfaketime_")]
    return kept[-1].read_bytes()


def _inputs(wanted: dict[str, Any]) -> list[str]:
    return [word for key, value in wanted.items() for word in ("--input", f"{key}={json.dumps(value)}")]


@pytest.mark.timeout(1_800)
def test_smoke(
    stack: Stack, cli: CommandLine, controller: IsolatedController, machines: Machines, recorder: Recorder
) -> None:
    smoke = Smoke(cli, machines, recorder)
    with smoke.step("preflight finds what is in the way"):
        library = base64.b64encode(fetch_faketime(stack)).decode()
        cli.run("ssh", "two", "--", "base64 --decode >/tmp/libfaketime.deb", stdin=library)
        for script in (IN_THE_WAY, CLOCK_WRONG):
            cli.on("two", f"sudo bash -c {shlex.quote(script)}")
        found = smoke.preflight("controller=one", "worker=two")
        assert list(found) == ["other_scheduler", "foreign_files", "port_taken", "clock_skew"]
        ahead = re.search(r"two is (\d+) s ahead of one", found["clock_skew"])
        assert ahead, found
        # Not to the second: both are read at once, on a host that may be busy.
        assert 3_000 < int(ahead[1]) < 4_200
        cli.on("two", f"sudo bash -c {shlex.quote(CLOCK_RIGHT)}")
        before = {name: cli.on(name, f"sudo bash -c {shlex.quote(WHAT_IS_THERE)}") for name in ("one", "two")}
        places = [word for place in ("controller=two", "worker=two", "worker=one") for word in ("--place", place)]
        refused = cli.call("instance", "deploy", "slurm", "--name", "refused", *places, "--wait")
        assert refused.returncode == 7, refused.stderr
        explained = cli.json("instance", "explain", "refused")
        said = explained["operation"]["error"]["detail"]
        assert all(word in said for word in ("slurm-wlm", "/etc/slurm/mine.conf", "listens on 6818")), said
        assert explained["operation"]["error"]["code"] == "preflight_failed"
        assert (explained["failed_step"]["key"], explained["operation"]["attempt"]) == ("preflight", 0)
        after = {name: cli.on(name, f"sudo bash -c {shlex.quote(WHAT_IS_THERE)}") for name in ("one", "two")}
        assert after == before, "the app's checks come before any change, on all machines of the deploy"
        cli.run("instance", "decommission", "refused", "--yes", "--wait")
        assert cli.on("two", "ls", "/etc/slurm/mine.conf").strip() == "/etc/slurm/mine.conf"
        cli.on("two", f"sudo bash -c {shlex.quote(OUT_OF_THE_WAY)}")
        assert smoke.preflight("controller=one", "worker=two") == {}
    with smoke.step("deploy, controller and worker apart"):
        instance = smoke.deploy("controller=one", "worker=two")
        assert instance["mode"] == "multi_node"
        assert smoke.states() == {"two": "idle"}
    with smoke.step("access: every command as printed"):
        run_as_printed(cli, instance)
    with smoke.step("add a worker while a job runs on another"):
        job = smoke.submit("two")
        smoke.do("add", "worker", "three", features=["fast"])
        assert smoke.states() == {
            "two": "mixed" if machines["two"]["shape"]["cpus"] > 1 else "allocated",
            "three": "idle",
        }
        assert cli.on("one", "srun", "--constraint=fast", "hostname").strip() == "three"
    with smoke.step("drain with a running job, and resume"):
        draining = smoke.ask("drain", "two", timeout_seconds=200)
        wait_until(lambda: smoke.states()["two"] == "draining", "the worker is draining", SECONDS)
        assert smoke.job(job) == "RUNNING"
        assert smoke.operation(draining["id"])["state"] not in FINAL
        cli.on("one", "scancel", job)
        smoke.finished(draining)
        assert smoke.states()["two"] == "drained"
        smoke.do("resume", "two")
        assert smoke.states()["two"] == "idle"
    with smoke.step("a person's drain is not undone"):
        cli.on("one", "sudo scontrol update nodename=two state=DRAIN reason=mine")
        smoke.do("drain", "two")
        assert smoke.ended(smoke.ask("resume", "two"))["error"]["code"] == "held_by_person"
        cli.on("one", "sudo scontrol update nodename=two state=RESUME")
        smoke.do("recover", "two")
    with smoke.step("remove, with its controller killed on the way"):
        steps = ["drain-node", "delete-nodes", "stop-daemons", "remove-packages", "prove-removal"]
        removed = smoke.interrupted(smoke.ask("remove", "three", "--yes"), steps, controller)
        assert removed["result"]["receipt"]["ok"] is True
        assert smoke.states() == {"two": "idle"}
        assert cli.on("three", "dpkg-query -W 'slurm*' munge 2>/dev/null || true").strip() == ""
    with smoke.step("add the same machine again"):
        smoke.do("add", "worker", "three")
        assert smoke.states() == {"two": "idle", "three": "idle"}
    with smoke.step("a rotated munge key: all members or none"):
        keys = smoke.munge_keys("one", "two", "three")
        assert len(keys) == 1
        cli.run("secret", "rotate", "munge-key", "--instance", NAME, "--yes")
        for name in ("two", "three"):
            smoke.do("recover", name)
        assert smoke.munge_keys("one", "two", "three") == keys, "the key that the cluster has, as it is kept yet"
        assert sorted(cli.on("one", "srun", "-N2", "hostname").split()) == ["three", "two"]
    with smoke.step("recover a worker whose slurmd and record are gone"):
        cli.on("two", "sudo systemctl disable --now slurmd")
        cli.on("one", "sudo scontrol delete nodename=two")
        smoke.do("recover", "two")
        assert smoke.states() == {"two": "idle", "three": "idle"}
    with smoke.step("restart of a worker's machine"):
        cli.run("allocation", "restart", "three", "--force", "--wait")
        wait_until(lambda: smoke.states().get("three") == "idle", "the restarted worker is idle", seconds=SECONDS)
    with smoke.step("replace a worker by the controller's machine"):
        replaced = smoke.do("replace", "three", "one")
        assert replaced["result"]["receipt"]["ok"] is True
        assert smoke.states() == {"two": "idle", "one": "idle"}
    with smoke.step("a munge key that is kept no more"):
        cli.run("secret", "rotate", "munge-key", "--instance", NAME, "--yes")
        failure = smoke.ended(smoke.ask("recover", "two"))["error"]
        assert (failure["code"], failure["member_usable"]) == ("munge_key_rotated", True)
        assert smoke.munge_keys("one", "two") == keys
        assert smoke.states() == {"two": "idle", "one": "idle"}
    with smoke.step("decommission"):
        cli.run("instance", "decommission", NAME, "--yes", "--wait")
        receipt = cli.json("instance", "receipt", NAME)
        assert receipt["ok"] is True
        assert {member["hostname"] for member in receipt["members"]} >= {"one", "two"}
    with smoke.step("redeploy at once, on one machine, with Open MPI"):
        again = smoke.deploy("controller=three", "worker=three", mpi=True)
        assert again["mode"] == "multi_node"
        assert cli.on("three", "srun", "hostname").strip() == "three"
    with smoke.step("access: the MPI and the GPU line as printed"):
        printed = {note["title"]: note["command"] for note in again["access_notes"]}
        assert "I am process 0 of 1" in cli.paste(printed["Run an MPI program"])
        assert cli.paste(printed["Run on a GPU"]).strip() == "0"
    with smoke.step("health"):
        assert "is UP" in cli.on("three", "scontrol", "ping")
        conditions = {each["type"]: each["status"] for each in cli.json("instance", "show", NAME)["conditions"]}
        assert (conditions["Ready"], conditions["Degraded"], conditions["VersionDrift"]) == ("true", "false", "false")
    with smoke.step("decommission"):
        cli.run("instance", "decommission", NAME, "--yes", "--wait")
        assert cli.json("instance", "receipt", NAME)["ok"] is True
