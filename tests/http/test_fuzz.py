"""Schemathesis over the API as a platform admin: no 5xx, nothing undocumented, in a platform of its own.

Once with ids of its own invention, once with ids that exist, since most of the code lies behind those. Each run draws
some of the operations, and all their cases; GPUAAS_SEED repeats it. With GPUAAS_FUZZ_SECONDS (`make soak` has it) it
goes over all operations for so long."""

import asyncio
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpuaas_contract.identity import Role
from gpuaas_platform.api.app import declare_app
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_stack.settings import Settings
from tests.support.chance import SEED
from tests.support.policy_world import PASSWORD, PolicyWorld, policy_world
from tests.support.processes import cloned_platform, log_file

SECONDS = int(os.environ.get("GPUAAS_FUZZ_SECONDS", "0"))
SHARE = 32
"""One of so many operations is drawn in `make test`, where there is no time for all."""
CASES = 6
"""Of each of them that are made up; those that its schema leads to come on top."""
CHECKS = (
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
)
# These can end the login of the run itself, since it finds out who it is: they get a run of their own.
LOCKING_OUT = (
    "end_session",
    "end_one_session",
    "change_own_password",
    "update_user",
    "delete_user",
    "delete_membership",
)
# Waiting is a feature of the feed, and would be most of the time of the run.
NO_WAITING = "[parameters]\nwait = 0\n"
# "Wait for Retry-After" is the right answer where the run gave itself a grant of which the machine does not know yet.
TOLD_TO_WAIT = """
[[operations]]
include-operation-id = "grant_allocation_access"
checks.not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "503"]
"""


@pytest.fixture(scope="module")
def fuzzed(servers: Settings) -> Iterator[Settings]:
    with cloned_platform(servers) as settings:
        yield settings


@dataclass
class Run:
    done: subprocess.CompletedProcess[str]
    statuses: Counter[int]
    """Of the answers to its requests, by the API's own log."""

    @property
    def cases(self) -> int:
        return sum(map(int, re.findall(r"(\d+) generated", self.done.stdout)))


async def fuzz(settings: Settings, directory: Path) -> list[Run]:
    async with policy_world(settings) as world:
        known = "".join(f'{name} = "{value}"\n' for name, value in world.values.items())
        runs = []
        for name, config in {"invented": NO_WAITING, "known": NO_WAITING + known, "locked out": NO_WAITING}.items():
            token = await log_in(world, name)
            before = len(logged(settings, "request"))
            done = await asyncio.to_thread(run, settings, directory / name, config, token, name == "locked out")
            answers = logged(settings, "request")[before:]
            runs.append(Run(done, Counter(entry["status"] for entry in answers)))
        return runs


def logged(settings: Settings, event: str) -> list[dict[str, Any]]:
    entries = [json.loads(line) for line in log_file(settings).read_text().splitlines()]
    return [entry for entry in entries if entry["event"] == event]


async def log_in(world: PolicyWorld, name: str) -> str:
    """As an administrator of its own, so that nothing that the run does locks the first one out."""
    admin = world.world.admin
    user = await admin.users.create(f"{name.replace(' ', '-')}@example.com", PASSWORD)
    await admin.memberships.create(user.id, Role.PLATFORM_ADMIN)
    async with GpuaasClient(admin.api_url, PasswordCredentials(user.email, PASSWORD)) as client:
        return (await client.fetch_token()).access_token


def run(
    settings: Settings, directory: Path, config: str, token: str, locking_out: bool
) -> subprocess.CompletedProcess[str]:
    directory.mkdir()
    operations = list(LOCKING_OUT) if locking_out else [name for name in all_operations() if name not in LOCKING_OUT]
    (directory / "schemathesis.toml").write_text(config + TOLD_TO_WAIT)
    command = [str(Path(sys.executable).parent / "st"), "run", f"{settings.api_url}/openapi.json"]
    command += ["--checks", ",".join(CHECKS), "--seed", str(SEED), "--no-color", "--warnings", "off"]
    # One worker: Python 3.11's parser, which Hypothesis uses to show lambdas, fails now and then under threads.
    command += ["--workers", "1", "--request-timeout", "30", "--continue-on-failure"]
    if SECONDS:
        command += ["--max-time", str(SECONDS // (8 if locking_out else 2))]
    else:
        operations = random.Random(f"{SEED} {directory.name}").sample(operations, max(2, len(operations) // SHARE))
        command += ["--max-examples", str(CASES)]
    for operation in operations:
        command += ["--include-operation-id", operation]
    command += ["--header", f"Authorization: Bearer {token}"]
    return subprocess.run(command, check=False, capture_output=True, text=True, cwd=directory)


def all_operations() -> list[str]:
    """From the description itself, so that a new one can be drawn as soon as it exists."""
    paths = declare_app().openapi()["paths"].values()
    return sorted(operation["operationId"] for path in paths for operation in path.values())


@pytest.mark.timeout(SECONDS + 300)
def test_no_request_makes_it_stumble(fuzzed: Settings, tmp_path: Path) -> None:
    print(f"GPUAAS_SEED={SEED}")
    runs = asyncio.run(fuzz(fuzzed, tmp_path))
    for run in runs:
        print(f"cases: {run.cases}, answers: {dict(sorted(run.statuses.items()))}")
    unexpected = logged(fuzzed, "unexpected_error")
    traces = "\n".join(f"{entry['path']}: {entry.get('exception', '')[-2000:]}" for entry in unexpected[:5])
    assert not unexpected, f"seed {SEED}: {traces}"
    for run in runs:
        assert run.done.returncode == 0, f"seed {SEED}: {run.done.stdout[-6000:]}{run.done.stderr[-2000:]}"
        assert 0 < run.cases <= run.statuses.total(), f"seed {SEED}: {run.cases} cases, answers {run.statuses}"
    # A part of all, since a slow machine answers fewer in the same time. Of a sample, most may be hard to get right.
    statuses = sum((run.statuses for run in runs), Counter[int]())
    reached = sum(count for status, count in statuses.items() if status < 300)
    assert reached > (statuses.total() / 10 if SECONDS else 0), "the run reached too little to mean anything"
