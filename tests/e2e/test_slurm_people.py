"""People of a cluster: real jobs as real users on two machines; one comes late, one loses the right."""

import asyncio
import os
import secrets
import time
from pathlib import Path
from typing import Any

import pytest

from gpuaas_contract.identity import Role
from gpuaas_sdk import GpuaasClient
from gpuaas_stack.stack import Stack
from tests.e2e.administrator import Platform
from tests.e2e.command_line import CommandLine
from tests.e2e.isolation import IsolatedController
from tests.machines.people import PASSWORD, Person, log_in, make_person
from tests.support.waiting import wait_until

Machines = dict[str, dict[str, Any]]
NAME = "shared"
SECONDS = 120
HUNDRED = 100
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


def _announced(cli: CommandLine, name: str) -> tuple[str, str]:
    """Somebody who has no role yet: the address, and the name that machines are going to know them by."""
    token = secrets.token_hex(3)
    email = f"{name}-{token}@example.com"
    cli.run("user", "create", email, "--password-stdin", stdin=PASSWORD)
    return email, f"u-{name}-{token}"


def _join(stack: Stack, cli: CommandLine, home: Path, email: str) -> Person:
    cli.run("membership", "create", email, "project_member", "--project", "research")
    return log_in(stack, home / email, email, PASSWORD)


def _wait_until_accepted(person: Person, seconds: float) -> None:
    words = ["ssh", "one", "--", "sbatch", "--parsable", "--output=/dev/null", "--wrap=true"]
    began = time.monotonic()
    wait_until(lambda: person.cli.call(*words).returncode == 0, f"{person.email} can submit", seconds, 0.5)
    print(f"  {person.email} can submit after {time.monotonic() - began:.1f} s", flush=True)


def _survives_faults(stack: Stack, cli: CommandLine, home: Path) -> None:
    # A name that a machine has for itself: refused there in words, nobody else is kept out, and mended by itself.
    email, login = _announced(cli, "dee")
    root(cli, "two", f"sudo useradd --uid 20555 {login}")
    dee = _join(stack, cli, home, email)
    _wait_until_accepted(dee, SOON)
    (refused,) = [entry for entry in people(cli)[email]["entries"] if entry["allocation_name"] == "two"]
    assert (refused["status"], refused["reason"]) == ("failed", f"this machine has a user {login} of its own")
    root(cli, "two", f"sudo userdel {login}")

    def mended() -> bool:
        return {entry["status"] for entry in people(cli)[email]["entries"]} == {"active"}

    wait_until(mended, "the machine to be asked again", SECONDS)

    # slurmdbd is away while somebody is added: the operation fails in words, and is asked for again.
    root(cli, "one", "sudo systemctl stop slurmdbd")
    fay = _join(stack, cli, home, _announced(cli, "fay")[0])

    def failed() -> bool:
        operations = cli.json("operation", "list", "--instance", NAME)
        return any(each["kind"] == "sync-people" and each["state"] == "failed" for each in operations)

    wait_until(failed, "sync-people to fail without slurmdbd", SECONDS, 0.5)
    assert cli.json("instance", "show", NAME)["status"] in {"running", "unknown"}
    root(cli, "one", "sudo systemctl start slurmdbd")
    _wait_until_accepted(fay, SECONDS)

    # sacctmgr is killed while it works.
    kill_one = "until pkill -KILL sacctmgr; do sleep 0.01; done"
    root(cli, "one", f"sudo systemd-run --quiet --unit=kill-one sh -c '{kill_one}'")
    gus = _join(stack, cli, home, _announced(cli, "gus")[0])
    _wait_until_accepted(gus, SECONDS)
    assert root(cli, "one", "systemctl is-active kill-one || true").strip() == "inactive", "nothing was killed"


def _takes_a_hundred(cli: CommandLine, platform: Platform) -> None:
    async def make(client: GpuaasClient) -> list[str]:
        project = next(each for each in await client.projects.list().all() if each.name == "research")
        users = [await client.users.create(f"many-{n}@example.com", PASSWORD) for n in range(HUNDRED)]
        await asyncio.gather(
            *(client.memberships.create(user.id, Role.PROJECT_MEMBER, project_id=project.id) for user in users)
        )
        return [user.email for user in users]

    emails = platform.ask(make)
    began = time.monotonic()
    wait_until(lambda: people(cli).keys() >= set(emails), "all of them to be people of the instance", SECONDS)
    logins = {found["login"] for email, found in people(cli).items() if email in emails}
    known = "scontrol show assoc_mgr flags=assoc | grep -o 'UserName=u-many[^(]*' | cut -d= -f2"
    wait_until(lambda: logins <= set(root(cli, "one", known).split()), "all of them to be known to slurmctld", SECONDS)
    print(f"  {HUNDRED} people: {time.monotonic() - began:.1f} s after the last membership")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path


def test_people_use_the_cluster_and_lose_it(
    stack: Stack,
    cli: CommandLine,
    platform: Platform,
    machines: Machines,
    controller: IsolatedController,
    home: Path,
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
    doors = root(cli, "two", "sudo ls /etc/ssh/gpuaas_principals /etc/ssh/gpuaas_keys")
    assert "gpuaas_keys" in doors
    assert ann_login not in doors

    # Who comes later can submit within seconds, without anybody's doing.
    cal = make_person(stack, cli, home, "cal")
    _wait_until_accepted(cal, SOON)
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

    _survives_faults(stack, cli, home)
    if "GPUAAS_SOAK" in os.environ:
        _takes_a_hundred(cli, platform)

    # With the cluster, the entries go.
    cli.run("instance", "decommission", NAME, "--yes", "--wait")
    entries = "getent passwd | grep ^u- || true; getent group | grep ^p- || true"
    for machine in ("one", "two"):
        wait_until(lambda m=machine: not root(cli, m, entries).strip(), f"no entries on {machine}", SECONDS)  # type: ignore[misc]
    assert log_in(stack, home / "again", ann.email, PASSWORD).cli.call("ssh", "one", "--", "true").returncode != 0
