"""Who may log in to the machines of this node under a lease, or by a role. The platform says it whole; what it does not
say is shut.

A machine's sshd asks for each log-in (`leases.sh`), so that a principal is let in or refused from one file to the next.
Sessions of those who are refused are cut afterwards: nobody who waits to be let in waits for that.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine
from pathlib import Path
from typing import Protocol

from gpuaas_agent.errors import AgentError, PermanentError
from gpuaas_agent.settings import PATIENCE_SECONDS
from gpuaas_agent.slice_config import check_principals, principal_lines
from gpuaas_contract.agent_link import LeasesSet, SetLeases
from gpuaas_contract.backoff import Backoff
from gpuaas_contract.ids import SERVICE_ACCOUNT, USER, is_id

log = logging.getLogger(__name__)

PAUSE_SECONDS = 1.0
"""Before a machine that could not be told is told again."""
CUT_ATTEMPTS = 10

Principals = dict[str, list[str]]
"""Login name on a machine to the principals that may use it."""


class Doors(Protocol):
    """The machines of this node, slices or the host itself."""

    async def list_doors(self) -> dict[str, Path]:
        """The directory of each machine in which its sshd looks for principals, by allocation."""

    async def ensure_door(self, allocation_id: str) -> None:
        """Make the machine's sshd ask; nothing to do for most of them."""

    async def cut_sessions(self, allocation_id: str) -> None:
        """End the sessions of those who may not log in any more."""


def read_door(directory: Path) -> dict[str, str]:
    """Read the lines of each login name."""
    if not directory.is_dir():
        return {}
    return {file.name: file.read_text() for file in directory.iterdir() if not file.name.startswith(".")}


def write_door(directory: Path, principals: Principals) -> bool:
    """Let in exactly these; return whether somebody was shut out. Whole files at once: nobody reads half a one.

    Not flushed to the disk: a host that lost its power hears everything anew."""
    wanted = {login: principal_lines(login, names) for login, names in principals.items() if names}
    present = read_door(directory)
    shut_out = False
    for login in sorted({*wanted, *present}):
        if wanted.get(login) == present.get(login):
            continue
        shut_out = shut_out or not set(present.get(login, "").splitlines()) <= set(wanted.get(login, "").splitlines())
        if shut_out:
            # Noted before: whatever ends this process, the sessions are cut in the end.
            _uncut(directory).touch()
        file = directory / login
        if login not in wanted:
            file.unlink()
            continue
        part = directory / f".{login}.part"
        part.write_text(wanted[login])
        part.chmod(0o644)
        part.replace(file)
    return shut_out


def people_of(directory: Path) -> Principals:
    """The principals of people that may enter by a role, and not under a lease."""
    named = {login: [line.split()[-1] for line in lines.splitlines()] for login, lines in read_door(directory).items()}
    return {login: [one for one in principals if _is_person(one)] for login, principals in named.items()}


def _is_person(principal: str) -> bool:
    return any(is_id(principal.partition("/")[0], kind) for kind in (USER, SERVICE_ACCOUNT))


def _uncut(directory: Path) -> Path:
    """A file beside the directory, there while sessions of the machine are still to be cut."""
    return directory.with_name(f"{directory.name}.uncut")


class LeaseKeeper:
    def __init__(
        self,
        doors: Doors,
        send: Callable[[LeasesSet], None],
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        pause_seconds: float = PAUSE_SECONDS,
    ) -> None:
        self._doors = doors
        self._send = send
        self._patience = patience_seconds
        self._pause = pause_seconds
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._cutting: dict[str, asyncio.Task[None]] = {}
        self._newest = 0
        self._unlinked: asyncio.TimerHandle | None = None

    def set(self, message: SetLeases) -> None:
        """Put a message of the platform into force, and confirm it. A newer one supersedes those that wait."""
        self._newest = message.sequence
        self._start(self._set(message))

    def linked(self) -> None:
        self._newest = 0
        if self._unlinked is not None:
            self._unlinked.cancel()
            self._unlinked = None

    def unlinked(self) -> None:
        """Count from now: a node that is cut off cannot be told that a lease has ended."""
        if self._unlinked is None:
            loop = asyncio.get_running_loop()
            self._unlinked = loop.call_later(self._patience, lambda: self._start(self._shut_all()))

    async def aclose(self) -> None:
        self.linked()
        tasks = [*self._tasks, *self._cutting.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _set(self, message: SetLeases) -> None:
        told = False
        while True:
            async with self._turn:
                if message.sequence != self._newest:
                    return
                whole = await self._apply(message.machines)
                if not told and message.sequence == self._newest:
                    # Also where a machine failed: its holder is refused there, and those of the others need not wait.
                    self._send(LeasesSet(sequence=message.sequence))
                    told = True
            if whole:
                return
            await asyncio.sleep(self._pause)

    async def _shut_all(self) -> None:
        log.warning("no link to the platform for %.0f s: nobody is let in under a lease any more", self._patience)
        while True:
            async with self._turn:
                # With a link again the platform says who may enter.
                if self._unlinked is None or await self._shut_leases():
                    return
            await asyncio.sleep(self._pause)

    async def _shut_leases(self) -> bool:
        """Shut out everybody but the people that a machine is administered by: they are not thrown out of it because
        the platform is away, and it gives them no certificates meanwhile."""
        try:
            doors = await self._doors.list_doors()
        except AgentError as error:
            log.error("cannot list the machines whose leases are to be shut: %s", error)
            return False
        return await self._apply({id: people_of(directory) for id, directory in doors.items()})

    async def _apply(self, machines: dict[str, Principals]) -> bool:
        """Return whether every machine that is there was told. One that fails keeps nobody out of the others.

        What is there is written first: to make a machine ask takes as long as LXD does, and shuts nobody out."""
        written = await self._write(machines, without=())
        await asyncio.gather(*(self._ensure(id) for id in machines))
        more = await self._write(machines, without=written or ())
        return written is not None and more is not None

    async def _write(self, machines: dict[str, Principals], without: Collection[str]) -> Collection[str] | None:
        """Write who may enter, and return the machines that are done; None where one of them could not be."""
        try:
            doors = await self._doors.list_doors()
        except AgentError as error:
            log.error("cannot list the machines whose leases are to be set: %s", error)
            return None
        failed = False
        for allocation_id, directory in doors.items():
            if allocation_id in without:
                continue
            try:
                principals = machines.get(allocation_id, {})
                check_principals(principals)
                write_door(directory, principals)
            except (AgentError, OSError) as error:
                log.error("cannot set who may log in to %s under a lease: %s", allocation_id, error)
                # What was named wrongly stays wrong; anything else is tried again.
                failed = failed or not isinstance(error, PermanentError)
            if _uncut(directory).exists():
                self._cut(allocation_id, directory)
        return None if failed else doors.keys()

    async def _ensure(self, allocation_id: str) -> None:
        try:
            await self._doors.ensure_door(allocation_id)
        except AgentError as error:
            log.error("the sshd of %s cannot be made to ask for leases: %s", allocation_id, error)

    def _cut(self, allocation_id: str, directory: Path) -> None:
        """One at a time for each machine, and once more after the last change."""
        before = self._cutting.get(allocation_id)

        async def after() -> None:
            if before is not None:
                await asyncio.gather(before, return_exceptions=True)
            await self._until_cut(allocation_id, directory)

        task = asyncio.create_task(after(), name=f"cut {allocation_id}")
        self._cutting[allocation_id] = task
        task.add_done_callback(lambda done: self._forget(allocation_id, done))

    def _forget(self, allocation_id: str, task: asyncio.Task[None]) -> None:
        if self._cutting.get(allocation_id) is task:
            del self._cutting[allocation_id]

    async def _until_cut(self, allocation_id: str, directory: Path) -> None:
        pauses = Backoff(first_delay=0.2, longest_delay=10).delays()
        for _ in range(CUT_ATTEMPTS):
            try:
                await self._doors.cut_sessions(allocation_id)
            except AgentError as error:
                log.warning("cannot cut the sessions of %s yet: %s", allocation_id, error)
                await asyncio.sleep(next(pauses))
                continue
            if self._cutting.get(allocation_id) is asyncio.current_task():
                # Nobody was shut out meanwhile.
                _uncut(directory).unlink(missing_ok=True)
            return
