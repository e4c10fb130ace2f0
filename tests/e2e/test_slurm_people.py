"""People of a cluster: real jobs as real users on two machines; one comes late, one loses the right."""

from pathlib import Path
from typing import Any

import pytest

from gpuaas_stack.stack import Stack
from tests.e2e.command_line import CommandLine
from tests.e2e.isolation import IsolatedController
from tests.machines.people import PASSWORD, Person, log_in, make_person
from tests.support.waiting import wait_until

Machines = dict[str, dict[str, Any]]
NAME = "shared"
SECONDS = 120
SOON = 30
"""Seconds in which somebody who was added can submit, on a machine that is busy with other tests."""


def people(cli: CommandLine) -> dict[str, dict[str, Any]]:
    return {each["email"]: each for each in cli.json("instance", "people", NAME)}


def root(cli: CommandLine, machine: str, line: str) -> str:
    """As the machine's own user, which the platform's administrator is let in as."""
    return cli.on(machine, line)


def submits(person: Person, *words: str) -> str:
    """Submit as this person, on the entrance, and return the number of the job."""
    return person.cli.run("ssh", "one", "--", "sbatch", "--parsable", *words).strip()


def state_of(cli: CommandLine, job: str) -> str:
    return root(cli, "one", f"sacct -X -n -P -j {job} --format=state,user").strip()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


def test_people_use_the_cluster_and_lose_it(
    stack: Stack, cli: CommandLine, machines: Machines, controller: IsolatedController, home: Path
) -> None:
    ann = make_person(stack, cli, home, "ann")
    bob = make_person(stack, cli, home, "bob")
    places = ["--place", "controller=one", "--place", "worker=one", "--place", "worker=two"]
    cli.json("instance", "deploy", "slurm", "--name", NAME, *places, "--wait")

    # Right after the deploy: both may submit, and run as themselves on both machines.
    found = people(cli)
    for person in (ann, bob):
        login, uid = found[person.email]["login"], found[person.email]["uid"]
        assert person.cli.run("ssh", "one", "--", "id", "-un").strip() == login
        said = person.cli.run("ssh", "one", "--", "srun", "--nodes=2", "--ntasks-per-node=1", "id", "-u")
        assert said.split() == [str(uid), str(uid)]
        refused = person.cli.call("ssh", "two", "--", "true")
        assert refused.returncode != 0
        assert "grant" in refused.stderr
    ann_login, group, gid = (found[ann.email][key] for key in ("login", "group", "gid"))
    for machine in ("one", "two"):
        assert root(cli, machine, f"getent group {group}").split(":")[2] == str(gid)
        assert group in root(cli, machine, f"id -nG {ann_login}").split()
    assert root(cli, "two", f"getent passwd {ann_login}").strip().endswith(":/usr/sbin/nologin")
    assert root(cli, "two", f"sudo ls /etc/ssh/gpuaas 2>/dev/null | grep -c {ann_login} || true").strip() == "0"

    # Who comes later can submit within seconds, without anybody's doing.
    cal = make_person(stack, cli, home, "cal")

    def accepted() -> bool:
        done = cal.cli.call("ssh", "one", "--", "sbatch", "--parsable", "--output=/dev/null", "--wrap=true")
        return done.returncode == 0

    wait_until(accepted, "the newcomer to submit", SOON, 0.5)
    assert "sync-people" in {each["kind"] for each in cli.json("operation", "list", "--instance", NAME)}

    # Membership ended with a job running on each machine.
    jobs = [
        submits(bob, "--output=/dev/null", f"--nodelist={machine}", "--wrap='sleep 600'") for machine in ("one", "two")
    ]
    runs = f"squeue -h -t R -o %A -j {','.join(jobs)}"
    wait_until(lambda: sorted(root(cli, "one", runs).split()) == sorted(jobs), "both jobs run", SECONDS)
    (membership,) = cli.json("membership", "list", "--user", bob.email, "--project", "research")
    cli.run("membership", "delete", membership["id"], "--yes")
    assert bob.cli.call("ssh", "one", "--", "true").returncode != 0
    for job in jobs:
        wait_until(lambda job=job: state_of(cli, job).startswith("CANCELLED"), f"job {job} is cancelled", SOON)  # type: ignore[misc]
    bob_login, bob_uid = found[bob.email]["login"], found[bob.email]["uid"]
    for machine in ("one", "two"):
        line = f"pgrep -u {bob_uid} || true"
        wait_until(lambda line=line, m=machine: not root(cli, m, line).strip(), f"nothing of {bob_login} runs", SECONDS)  # type: ignore[misc]
    refused_line = f"sudo setpriv --reuid={bob_uid} --regid={bob_uid} --clear-groups sbatch --wrap=true 2>&1 || true"
    assert "Invalid account" in root(cli, "one", refused_line) or "error" in root(cli, "one", refused_line)
    # The others work on, and what was done stays.
    assert submits(ann, "--output=/dev/null", "--wrap=true").isdigit()
    assert bob_login in state_of(cli, jobs[0])
    for machine in ("one", "two"):
        look = f"getent passwd {bob_login} || true"
        wait_until(lambda look=look, m=machine: not root(cli, m, look).strip(), "the entry to go", SECONDS)  # type: ignore[misc]

    # With the cluster, the entries go.
    cli.run("instance", "decommission", NAME, "--yes", "--wait")
    entries = "getent passwd | grep ^u- || true; getent group | grep ^p- || true"
    for machine in ("one", "two"):
        wait_until(lambda m=machine: not root(cli, m, entries).strip(), f"no entries on {machine}", SECONDS)  # type: ignore[misc]
    assert log_in(stack, home / "again", ann.email, PASSWORD).cli.call("ssh", "one", "--", "true").returncode != 0
