"""Fixtures of the agent's tests: a small platform, and the real agent as a process of its own."""

import contextlib
import os
import shutil
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

from .agent_test_host import DEVICES, ENVIRONMENT, RANGE, AgentProcess, list_tagged, reap, run
from .agent_test_platform import TOKEN, Platform


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
        "GPUAAS_NETWORK_RANGE": RANGE,
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
    pool = os.environ.get("GPUAAS_TEST_POOL")
    if pool is None:
        pytest.skip("needs machines: make slices")
    reap(pool)
    # Were a bridge missing, packets for its range end here instead of leaving the host.
    run("ip", "route", "replace", "unreachable", RANGE, "metric", "4278198272")
    shutil.rmtree(DEVICES, ignore_errors=True)
    DEVICES.mkdir()
    for number in range(2):
        os.mknod(DEVICES / f"nvidia{number}", 0o020666, os.makedev(1, 3))
    yield pool
    reap(pool)
    shutil.rmtree(DEVICES)
    run("ip", "route", "del", "unreachable", RANGE, "metric", "4278198272")


@pytest.fixture
def leftovers(pool: str) -> Iterator[Callable[[], list[str]]]:
    """Lists the names of all that exists of this environment; each machine test must leave nothing."""

    def look() -> list[str]:
        kinds = [("list",), ("network", "list"), ("network", "acl", "list"), ("storage", "volume", "list", pool)]
        return [name for kind in kinds for name in list_tagged(*kind)]

    yield look
    with contextlib.suppress(AssertionError):
        reap(pool)
