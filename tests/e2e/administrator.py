"""The platform as its administrator sees it, over one lasting connection, for waits that poll.

The actions under test go through the command line, as people's do."""

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable
from typing import Protocol, TypeVar

from gpuaas_contract.allocations import Allocation
from gpuaas_contract.operations import Operation
from gpuaas_sdk import GpuaasClient, PasswordCredentials
from gpuaas_sdk.retry import RetryPolicy
from gpuaas_stack.platform_services import ADMIN_EMAIL
from gpuaas_stack.settings import Settings
from tests.support.waiting import wait_until

T = TypeVar("T")
LOOK_EVERY = 0.25
PATIENCE = 240
"""Seconds, on a machine that may be busy with other things."""
_PATIENT = RetryPolicy(attempts=60)
"""The API may be away for as long as its start takes on a busy machine."""


class Named(Protocol):
    @property
    def id(self) -> str: ...

    @property
    def name(self) -> str: ...


Thing = TypeVar("Thing", bound=Named)


class Platform:
    def __init__(self, settings: Settings) -> None:
        password = settings.admin_password_file.read_text().strip()
        self._client = GpuaasClient(settings.api_url, PasswordCredentials(ADMIN_EMAIL, password), retry=_PATIENT)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def ask(self, work: Callable[[GpuaasClient], Awaitable[T]]) -> T:
        async def asked() -> T:
            return await work(self._client)

        return asyncio.run_coroutine_threadsafe(asked(), self._loop).result(300)

    def close(self) -> None:
        self.ask(lambda client: client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(60)
        self._loop.close()

    def machine(self, name: str) -> Allocation:
        if name.startswith("alc_"):
            return self.ask(lambda client: client.allocations.get(name))
        return _newest(name, self.ask(lambda client: client.allocations.list(name=name).all()))

    def steps(self, machine: str) -> list[str]:
        """Return every step in the life of the machine."""
        id = self.machine(machine).id
        return [entry.step for entry in self.ask(lambda client: client.allocations.timeline(id)).items]

    def node_status(self, name: str) -> str | None:
        nodes = [node for node in self.ask(lambda client: client.nodes.list().all()) if node.name == name]
        return nodes[-1].status if nodes else None

    def operations_of(self, instance: str) -> Callable[[], list[Operation]]:
        """Look the instance up once, and return a function that lists its operations."""
        id = _newest(instance, self.ask(lambda client: client.instances.list().all())).id
        return lambda: self.ask(lambda client: client.operations.list(instance_id=id).all())

    def wait_for_step(self, machine: str, step: str) -> None:
        # Soon enough for what is to happen while it lasts.
        wait_until(lambda: step in self.steps(machine), f"{machine} is at its step {step}", PATIENCE, every=0.03)

    def wait_for_node(self, name: str, status: str) -> None:
        self.wait_until(lambda: self.node_status(name) == status, f"the node {name} is {status}")

    def wait_until(self, condition: Callable[[], T], what: str, seconds: float = PATIENCE) -> T:
        return wait_until(condition, what, seconds, LOOK_EVERY)


def _newest(name: str, found: Iterable[Thing]) -> Thing:
    """Return the newest of a name: names are used again after an end, and ids grow with time."""
    return max((item for item in found if item.name == name), key=lambda item: item.id)
