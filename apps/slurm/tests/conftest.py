"""Slices for the tests that need real machines."""

import os
from collections.abc import AsyncIterator, Callable, Generator

import pytest
import pytest_asyncio

from .lxc_machine import POOL, make_environment, remove_environment
from .slices import Slices
from .victim import Victim

HAS_FAILED = pytest.StashKey[bool]()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    item.stash[HAS_FAILED] = item.stash.get(HAS_FAILED, False) or report.failed
    return report


@pytest.fixture
def has_failed(request: pytest.FixtureRequest) -> Callable[[], bool]:
    """Asked after the test: whether it failed."""
    return lambda: bool(request.node.stash.get(HAS_FAILED, False))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def slices(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Slices]:
    if not POOL:
        pytest.skip("needs machines: make apps")
    await make_environment()
    try:
        yield Slices(tmp_path_factory.mktemp("slices"))
    finally:
        if not os.environ.get("GPUAAS_KEEP_MACHINES"):
            await remove_environment()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def victim(slices: Slices) -> Victim:
    """A slice with all packages, from the one install of a run that starts from nothing and is only an install."""
    machine = await slices.get("solo", gpus=2)
    victim = Victim(slices, machine, await slices.digest(machine))
    await victim.install_first()
    return victim
