"""One platform for the tests of a module, one after another: each makes what it needs, and leaves nothing that acts."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from gpuaas_stack.settings import Settings
from tests.support.database import connect
from tests.support.processes import cloned_platform
from tests.support.waiting import wait_until

_REST = (
    # A request that still waits would be given to the node of the next test.
    "UPDATE allocations SET status = 'released' WHERE status = 'requested'",
    # A node counts in what the platform says of the largest one and of all images, also while it is away.
    "UPDATE nodes SET status = 'retired', intent = 'retired' WHERE status <> 'retired'",
)


class SharedPlatform:
    """Made when it is first used, and made anew for the next test after one that failed."""

    def __init__(self, servers: Settings) -> None:
        self._servers = servers
        self._running = ExitStack()
        self._settings: Settings | None = None

    def settings(self) -> Settings:
        if self._settings is None:
            self._settings = self._running.enter_context(cloned_platform(self._servers))
        return self._settings

    def rest(self) -> None:
        """Wait until no node of a test is connected any more, and end what waits for one."""
        with connect(self.settings()) as database:
            query = "SELECT 1 FROM nodes WHERE status IN ('ready', 'cordoned', 'draining')"
            wait_until(lambda: database.execute(query).fetchone() is None, "all nodes are offline", every=0.01)
            for statement in _REST:
                database.execute(statement.encode())

    def end(self) -> None:
        self._running.close()
        self._settings = None


@contextmanager
def shared_platform(servers: Settings) -> Iterator[SharedPlatform]:
    platform = SharedPlatform(servers)
    try:
        yield platform
    finally:
        platform.end()
