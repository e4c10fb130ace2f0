"""A machine that notes what is run on it, so that the step says it: names of units and files, never their content."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from gpuaas_contract.operations import CommandKind, RemoteCommand
from gpuaas_sdk.machines.base import CommandError, CommandResult, Machine
from gpuaas_sdk.machines.remote import unit_name

Note = Callable[[RemoteCommand], None]


class NotedMachine:
    def __init__(self, machine: Machine, operation_id: str, note: Note) -> None:
        self._machine = machine
        self._operation_id = operation_id
        self._note = note

    @property
    def allocation_id(self) -> str:
        return self._machine.allocation_id

    @property
    def hostname(self) -> str:
        return self._machine.hostname

    @property
    def address(self) -> str:
        return self._machine.address

    async def read(self, script: str, *, timeout: float = 30) -> CommandResult:
        return await self._machine.read(script, timeout=timeout)

    async def run_step(self, step: str, script: str, *, timeout: float = 300) -> CommandResult:
        with self._noted(CommandKind.STEP, unit_name(self._operation_id, step)):
            return await self._machine.run_step(step, script, timeout=timeout)

    async def write_file(
        self, path: str, content: str | bytes, *, mode: int = 0o644, owner: str = "root", group: str = "root"
    ) -> None:
        with self._noted(CommandKind.FILE, path):
            await self._machine.write_file(path, content, mode=mode, owner=owner, group=group)

    async def deliver(self, digest: str) -> str:
        return await self._machine.deliver(digest)

    @contextmanager
    def _noted(self, kind: CommandKind, name: str) -> Iterator[None]:
        at, began, status = datetime.now(UTC), time.monotonic(), None
        try:
            yield
            status = 0
        except CommandError as error:
            status = error.result.exit_status
            raise
        finally:
            self._note(
                RemoteCommand(
                    allocation_id=self.allocation_id[:64],
                    machine=self.hostname[:255],
                    kind=kind,
                    name=name[:500],
                    started_at=at,
                    seconds=round(time.monotonic() - began, 3),
                    exit_status=status,
                )
            )
