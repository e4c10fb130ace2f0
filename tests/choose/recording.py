"""A plugin of pytest that records which files each test module uses, in the tests and in the processes they start."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.choose.children import sitecustomize

if TYPE_CHECKING:
    from gpuaas_stack.settings import Settings

MODULES = "modules"
"""In the directory of a worker: the test modules in the order of their numbers, which begin with 1."""
FAILED = "failed"
"""In the same place: those of them that had a test which failed."""
EVERY = 0
"""The number of what happens for all of them: set-up of the whole run, and what an API does that nobody asks."""
IDLE_SECONDS = 20.0
"""An API does all that it does by itself within this time: its sweeps run every few seconds."""


class Recording:
    """The recording of one worker, in a directory of its own, since each worker runs a module of its own."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True)
        (directory / sitecustomize.SHOWN).write_bytes(bytes(2))
        self._directory = directory
        self._modules: list[str] = []
        children = str(Path(sitecustomize.__file__).parent)
        self._environment = {sitecustomize.DIRECTORY: str(directory), "PYTHONPATH": children}
        os.environ.update(self._environment)
        self._record_in_children()
        self._recorder = sitecustomize.start(str(directory))

    def _record_in_children(self) -> None:
        """Also in programs that a test gives an environment of its own."""
        popen, more = subprocess.Popen, self._environment

        class RecordedPopen(popen):  # type: ignore[misc, valid-type]
            def __init__(self, *args: Any, env: Any = None, **options: Any) -> None:
                super().__init__(*args, env=None if env is None else {**env, **more}, **options)

        subprocess.Popen = RecordedPopen  # type: ignore[misc]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> None:
        name = item.path.stem
        if name not in self._modules:
            self._modules.append(name)
            (self._directory / MODULES).write_text("\n".join(self._modules))
        self._recorder.show(1 + self._modules.index(name))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            with (self._directory / FAILED).open("a") as failed:
                failed.write(f"{Path(report.location[0]).stem}\n")

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Iterator[None]:
        """Count fixtures of the whole run as used by every module, not by the first one."""
        if fixturedef.scope != "session":
            return (yield)
        before = self._recorder.show(EVERY)
        try:
            return (yield)
        finally:
            self._recorder.show(before)


# In a worker, and before anything of ours is imported there: what is imported already says nothing.
_WORKER = os.environ.get("PYTEST_XDIST_WORKER")
_RECORDING = Recording(Path(os.environ["GPUAAS_RECORDINGS"]) / _WORKER) if _WORKER else None


def pytest_configure(config: pytest.Config) -> None:
    if _RECORDING is not None:
        config.pluginmanager.register(_RECORDING)


@pytest.fixture(scope="session", autouse=True)
def _idle_api(servers: "Settings") -> None:
    """Record what an API does that nobody asks."""
    from tests.support.processes import cloned_platform

    with cloned_platform(servers):
        time.sleep(IDLE_SECONDS)
