"""Checks of other people's manifests, schemas and inputs, in processes that are killed when they take too long.

A check takes as long as its author wants, so it runs outside of the event loop and of any transaction: where a
transaction needs a verdict that is not known yet, it is rolled back, the check is run, and it begins again."""

import asyncio
import hashlib
import json
import os
import signal
import sys
from asyncio.subprocess import PIPE, Process
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

import structlog

from gpuaas_contract.base import JsonObject
from gpuaas_contract.problems import Code, FieldError
from gpuaas_platform.core.check_worker import LENGTH
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.core.fair_queue import FairQueue, QueueFullError

log = structlog.get_logger()
T = TypeVar("T")

MOST_REMEMBERED = 10_000
LARGEST_IDLE = 128 << 20
"""A worker that has taken more memory than this is replaced: Python gives little of it back."""
_OVER_A_LIMIT = {-signal.SIGXCPU, -signal.SIGABRT, -signal.SIGSEGV}
"""How the kernel, or a library without memory, ends a process that was too slow or too large."""


@dataclass(frozen=True)
class Check:
    """Find the problems of a manifest, or of a value by a schema."""

    owner: str
    """Who pays for it, by waiting: a tenant, or the publisher of an app."""
    document: JsonObject
    schema: JsonObject | None = None
    """None for a manifest."""
    pointer: str = ""

    @cached_property
    def request(self) -> bytes:
        wanted = {"document": self.document, "schema": self.schema, "pointer": self.pointer}
        return json.dumps(wanted).encode()

    @cached_property
    def key(self) -> str:
        """The same for the same question, whoever asks it."""
        return hashlib.sha256(self.request).hexdigest()


@dataclass(frozen=True, slots=True)
class Verdict:
    problems: tuple[FieldError, ...] = ()
    too_slow: bool = False
    """It was not found out: the problem says where it took too long."""

    def refusal(self, code: Code, detail: str, errors: Sequence[FieldError]) -> Refusal:
        return Refusal(Code.SCHEMA_TOO_SLOW if self.too_slow else code, detail, errors=errors)


class CheckNeededError(Exception):
    """Raised inside of a transaction: begin again when these were run."""

    def __init__(self, checks: Sequence[Check]) -> None:
        super().__init__(f"{len(checks)} checks have to be run outside of the transaction")
        self.checks = checks


class WorkerDiedError(Exception):
    """Not by what it was asked: it was killed, or nobody let it run."""


@dataclass(eq=False)
class _Waiting:
    check: Check
    verdict: asyncio.Future[Verdict]
    waiters: int = 0


@dataclass(slots=True)
class _Worker:
    process: Process
    handle: int
    at: str = ""
    """The place of the schema that it is busy with."""

    async def ask(self, check: Check) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.at = check.pointer
        self.process.stdin.write(LENGTH.pack(len(check.request)) + check.request)
        await self.process.stdin.drain()
        while True:
            head = await self.process.stdout.readexactly(LENGTH.size)
            answer: dict[str, Any] = json.loads(await self.process.stdout.readexactly(*LENGTH.unpack(head)))
            if "at" not in answer:
                return answer
            self.at = check.pointer + answer["at"]

    async def kill(self) -> int:
        """Return how it ended; one that has ended by itself keeps its reason."""
        # Not `process.kill`: it looks whether the process lives, and takes its exit status from those who wait for it.
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.handle, signal.SIGKILL)
        os.close(self.handle)
        return await self.process.wait()


@dataclass
class CheckPool:
    """The workers of one process. They start when they are first needed, and end with it."""

    workers: int
    seconds: int
    """Of a core, for each check."""
    patience: float = 30
    """For a worker that is not let run, and for those who wait until it is their turn."""
    _idle: list[_Worker] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)
    _pending: dict[tuple[str, str], _Waiting] = field(default_factory=dict)
    _remembered: OrderedDict[str, Verdict] = field(default_factory=OrderedDict)
    """Of checks in which nothing was found, which are asked again and again, and of those that took too long."""
    _closed: bool = False

    def __post_init__(self) -> None:
        self._queue: FairQueue[_Waiting] = FairQueue(self.workers)

    def recall(self, check: Check) -> Verdict | None:
        if (found := self._remembered.get(check.key)) is not None:
            self._remembered.move_to_end(check.key)
        return found

    async def run(self, checks: Iterable[Check]) -> dict[str, Verdict]:
        """Return the verdicts by the checks' keys; one after the other, as they are of one owner."""
        return {check.key: self.recall(check) or await self._run(check) for check in checks}

    async def _run(self, check: Check) -> Verdict:
        place = (check.owner, check.key)
        waiting = self._pending.get(place)
        if waiting is None:
            waiting = _Waiting(check, asyncio.get_running_loop().create_future())
            try:
                self._queue.put(check.owner, waiting)
            except QueueFullError:
                raise _busy(Code.RATE_LIMITED) from None
            self._pending[place] = waiting
            self._dispatch()
        waiting.waiters += 1
        try:
            async with asyncio.timeout(2 * self.patience):
                return await asyncio.shield(waiting.verdict)
        except TimeoutError:
            raise _busy(Code.UNAVAILABLE) from None
        finally:
            waiting.waiters -= 1
            if not waiting.waiters:
                self._queue.remove(check.owner, waiting)
                self._pending.pop(place, None)

    def _dispatch(self) -> None:
        while not self._closed and (taken := self._queue.take()) is not None:
            owner, waiting = taken
            task = asyncio.create_task(self._work(owner, waiting))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _work(self, owner: str, waiting: _Waiting) -> None:
        # Where nobody says how long it took, it took as long as it may.
        seconds = float(self.seconds)
        try:
            verdict, seconds = await self._settle(waiting.check)
        except Exception as error:  # noqa: BLE001 - those who wait for it hear of it
            _settle(waiting.verdict, error=error)
        else:
            if verdict.too_slow or not verdict.problems:
                self._remembered[waiting.check.key] = verdict
                if len(self._remembered) > MOST_REMEMBERED:
                    self._remembered.popitem(last=False)
            _settle(waiting.verdict, verdict=verdict)
        finally:
            _settle(waiting.verdict, error=_busy(Code.UNAVAILABLE))
            self._queue.done(owner, seconds)
            self._dispatch()

    async def _settle(self, check: Check) -> tuple[Verdict, float]:
        try:
            return await self._ask(check)
        except WorkerDiedError as error:
            # Somebody may have killed it for another reason: once more, with a new one.
            log.warning("check_worker_died", owner=check.owner, error=str(error))
        try:
            return await self._ask(check)
        except WorkerDiedError as error:
            log.warning("check_worker_died", owner=check.owner, error=str(error))
            raise _busy(Code.UNAVAILABLE) from error

    async def _ask(self, check: Check) -> tuple[Verdict, float]:
        worker = self._idle.pop() if self._idle else await self._start()
        answer: dict[str, Any] | None = None
        ended: int | None = None
        try:
            async with asyncio.timeout(self.patience):
                answer = await worker.ask(check)
        except (TimeoutError, OSError, EOFError):
            pass
        finally:
            if answer is None or answer["memory"] > LARGEST_IDLE or self._closed:
                ended = await worker.kill()
            else:
                self._idle.append(worker)
        if answer is None and ended in _OVER_A_LIMIT:
            log.warning("check_too_slow", owner=check.owner, at=worker.at)
            return self._too_slow(worker.at), float(self.seconds)
        if answer is None:
            raise WorkerDiedError(f"the worker ended with {ended}")
        if "error" in answer:
            raise RuntimeError(f"a check failed:\n{answer['error']}")
        if "out_of_memory" in answer:
            log.warning("check_too_large", owner=check.owner, at=worker.at)
            return self._too_slow(worker.at), float(answer["seconds"])
        return Verdict(tuple(FieldError(**problem) for problem in answer["problems"])), float(answer["seconds"])

    def _too_slow(self, at: str) -> Verdict:
        detail = (
            f"checking this takes more than {self.seconds} s or too much memory, so it was stopped: "
            "use simpler patterns, fewer branches or a smaller value"
        )
        return Verdict((FieldError(pointer=at, detail=detail),), too_slow=True)

    async def _start(self) -> _Worker:
        # Isolated, and without our environment, which names the database and the vault.
        command = [sys.executable, "-I", "-m", "gpuaas_platform.core.check_worker", str(self.seconds)]
        try:
            process = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE, env={}, cwd="/")
            return _Worker(process, os.pidfd_open(process.pid))
        except OSError as error:
            raise WorkerDiedError(f"cannot start a worker: {error}") from error

    async def close(self) -> None:
        self._closed = True
        for task in [*self._tasks]:
            task.cancel()
        for waiting in [*self._pending.values()]:
            _settle(waiting.verdict, error=_busy(Code.UNAVAILABLE))
        await asyncio.gather(*self._tasks, return_exceptions=True)
        while self._idle:
            await self._idle.pop().kill()


def _settle(future: asyncio.Future[Verdict], verdict: Verdict | None = None, error: Exception | None = None) -> None:
    if future.done():
        return
    if verdict is not None:
        future.set_result(verdict)
    elif error is not None:
        future.set_exception(error)
        # Read once here: where nobody waits any more, the loop would complain.
        future.exception()


def _busy(code: Code) -> Refusal:
    detail = "too many checks of schemas and inputs are waiting, or one could not be run; try again"
    return Refusal(code, detail, retry_after=2)


@dataclass(slots=True)
class Verdicts:
    """The verdicts that one request has so far."""

    pool: CheckPool
    known: dict[str, Verdict] = field(default_factory=dict)

    def get(self, check: Check) -> Verdict | None:
        return self.known.get(check.key) or self.pool.recall(check)

    async def until_known(self, attempt: Callable[[], Awaitable[T]]) -> T:
        """Attempt a transaction again and again: each time more is known. Nothing is held while checks are run."""
        while True:
            try:
                return await attempt()
            except CheckNeededError as needed:
                self.known |= await self.pool.run(needed.checks)
