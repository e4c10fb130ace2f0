"""Machines that do not answer. A teardown goes on without them, and its receipt says what could not be verified."""

from collections.abc import Awaitable, Callable
from typing import NoReturn, TypeVar

from gpuaas_sdk.machines.base import CommandResult, Machine, MachineUnreachableError

T = TypeVar("T")


class AbsentMachine:
    """No access to it: released, stopped, or not an active machine any more."""

    def __init__(self, allocation_id: str, hostname: str, reason: str) -> None:
        self.allocation_id = allocation_id
        self.hostname = hostname
        self.address = "0.0.0.0"  # noqa: S104 - never used, but always an address
        self._reason = reason

    def _refuse(self) -> NoReturn:
        raise MachineUnreachableError(self._reason)

    async def read(self, script: str, *, timeout: float = 30) -> CommandResult:
        self._refuse()

    async def run_step(self, step: str, script: str, *, timeout: float = 300) -> CommandResult:
        self._refuse()

    async def write_file(
        self, path: str, content: str | bytes, *, mode: int = 0o644, owner: str = "root", group: str = "root"
    ) -> None:
        self._refuse()

    async def deliver(self, digest: str) -> str:
        self._refuse()


class RememberingMachine:
    """Fails at once after the first time that it did not answer: each further question would wait as long."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._lost: MachineUnreachableError | None = None

    @property
    def allocation_id(self) -> str:
        return self._machine.allocation_id

    @property
    def hostname(self) -> str:
        return self._machine.hostname

    @property
    def address(self) -> str:
        return self._machine.address

    async def _ask(self, question: Callable[[], Awaitable[T]]) -> T:
        if self._lost is not None:
            raise self._lost
        try:
            return await question()
        except MachineUnreachableError as error:
            self._lost = error
            raise

    async def read(self, script: str, *, timeout: float = 30) -> CommandResult:
        return await self._ask(lambda: self._machine.read(script, timeout=timeout))

    async def run_step(self, step: str, script: str, *, timeout: float = 300) -> CommandResult:
        return await self._ask(lambda: self._machine.run_step(step, script, timeout=timeout))

    async def write_file(
        self, path: str, content: str | bytes, *, mode: int = 0o644, owner: str = "root", group: str = "root"
    ) -> None:
        await self._ask(lambda: self._machine.write_file(path, content, mode=mode, owner=owner, group=group))

    async def deliver(self, digest: str) -> str:
        return await self._ask(lambda: self._machine.deliver(digest))
