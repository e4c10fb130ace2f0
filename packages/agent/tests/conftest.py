"""Fixtures of the agent's tests: a small platform, and the real agent as a process of its own."""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from agent_test_platform import TOKEN, Platform

ENVIRONMENT = "agenttest"
RANGE = "10.85.0.0/16"
DEVICES = Path("/dev/gpuaas-agenttest")
"""Stand-in GPUs; LXD takes devices from below /dev only."""
OWN_POOL = "gpuaas-agenttest"


class AgentProcess:
    """The agent as it runs on a host: a process that can be killed."""

    def __init__(self, environ: dict[str, str], log: Path) -> None:
        self.environ = environ
        self.log = log
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        assert self._process is None
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "gpuaas_agent.main", "run"], env=self.environ, stderr=log, stdout=log
            )

    async def end(self, number: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(number)
        return await asyncio.to_thread(process.wait, 30)


@pytest.fixture
async def platform(tmp_path: Path) -> AsyncIterator[Platform]:
    directory = tmp_path / "platform"
    directory.mkdir()
    async with Platform(directory).listening() as running:
        yield running


@pytest.fixture
async def agent(platform: Platform, tmp_path: Path, pool: str) -> AsyncIterator[AgentProcess]:
    """Started; its log is shown when the test fails."""
    token_file = tmp_path / "join-token"
    token_file.write_text(f"{TOKEN}\n")
    environ = os.environ | {
        "GPUAAS_API_URL": f"http://127.0.0.1:{platform.port}",
        "GPUAAS_AGENT_STATE_DIR": str(tmp_path / "state"),
        "GPUAAS_JOIN_TOKEN_FILE": str(token_file),
        "GPUAAS_ENVIRONMENT": ENVIRONMENT,
        "GPUAAS_STORAGE_POOL": pool,
        "GPUAAS_GPU_DEVICES": f"{DEVICES}/nvidia[0-9]*",
        "GPUAAS_CPU_OVERCOMMIT": "4",
    }
    process = AgentProcess(environ, tmp_path / "agent.log")
    process.start()
    try:
        await platform.until(lambda: platform.hellos, "the agent's hello")
        yield process
    finally:
        await process.end(signal.SIGTERM)
        print(process.log.read_text())


@pytest.fixture(scope="session")
def pool() -> Iterator[str]:
    """Everything that the machine tests need on this host, reaped by tag before and after."""
    reap()
    shutil.rmtree(DEVICES, ignore_errors=True)
    # Were a bridge missing, packets for its range end here instead of leaving the host.
    run("ip", "route", "replace", "unreachable", RANGE, "metric", "4278198272")
    DEVICES.mkdir()
    for number in range(2):
        os.mknod(DEVICES / f"nvidia{number}", 0o020666, os.makedev(1, 3))
    pools = {found["name"] for found in json.loads(run("lxc", "storage", "list", "-f", "json"))}
    made = "gpuaas-demo" not in pools
    if made and OWN_POOL not in pools:
        run("lxc", "storage", "create", OWN_POOL, "btrfs", "size=12GiB")
    yield OWN_POOL if made else "gpuaas-demo"
    reap()
    if made:
        run("lxc", "storage", "delete", OWN_POOL)
    shutil.rmtree(DEVICES, ignore_errors=True)
    run("ip", "route", "del", "unreachable", RANGE, "metric", "4278198272")


def reap() -> None:
    for instance in tagged("list"):
        run("lxc", "delete", "-f", instance)
    for network in tagged("network", "list"):
        run("lxc", "network", "delete", network)
    for acl in tagged("network", "acl", "list"):
        run("lxc", "network", "acl", "delete", acl)


def tagged(*command: str) -> list[str]:
    found = json.loads(run("lxc", *command, "-f", "json"))
    key = "user.gpuaas.environment"
    return [item["name"] for item in found if (item["config"] or {}).get(key) == ENVIRONMENT]


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


@pytest.fixture
def leftovers() -> Iterator[object]:
    """What of this environment exists now, as names; each machine test must leave nothing."""

    def look() -> list[str]:
        return [*tagged("list"), *tagged("network", "list"), *tagged("network", "acl", "list")]

    yield look
    with contextlib.suppress(AssertionError):
        reap()
