"""Tasks from the platform: delivered at least once, run once at a time per machine or volume, reported until heard.

A task that is delivered again while it runs is the same task; one that is delivered again after its
result was lost runs again, and finds its work done.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from structlog.contextvars import bound_contextvars

from gpuaas_agent.errors import AgentError, PeopleRefusedError, RetryLaterError
from gpuaas_agent.locks import KeyedLocks
from gpuaas_agent.slices import Progress
from gpuaas_contract.agent_link import (
    ClearHost,
    DeleteSlice,
    DeleteVolume,
    SetUsers,
    TaskMessage,
    TaskProgress,
    TaskResult,
)
from gpuaas_contract.backoff import Backoff

log = logging.getLogger(__name__)

Execute = Callable[[TaskMessage, Progress], Awaitable[str | None]]
"""Does the work; returns a path on the machine where the task has one."""
Send = Callable[[TaskProgress | TaskResult], None]

RETRY_SECONDS = 120


@dataclass
class _Unheard:
    result: TaskResult
    sent_at: float


def _subject(message: TaskMessage) -> str:
    """The id of the machine that the task is about, or of a volume that is on none."""
    return message.spec.volume_id if isinstance(message.spec, DeleteVolume) else message.spec.allocation_id


def _turn(message: TaskMessage) -> str:
    """Tasks about one thing run one after another. Who may be on a machine does not wait for what is done to it."""
    return f"{_subject(message)}/users" if isinstance(message.spec, SetUsers) else _subject(message)


class TaskRunner:
    def __init__(
        self, execute: Execute, send: Send, locks: KeyedLocks, *, retry_seconds: float = RETRY_SECONDS
    ) -> None:
        self._execute = execute
        self._send = send
        self._locks = locks
        self._retry_seconds = retry_seconds
        self._running: dict[str, tuple[TaskMessage, asyncio.Task[None]]] = {}
        self._overtaken: set[str] = set()
        self._unheard: dict[str, _Unheard] = {}

    def accept(self, message: TaskMessage) -> None:
        if message.task_id in self._unheard:
            self._report(self._unheard[message.task_id].result)
            return
        if message.task_id in self._running:
            return
        if isinstance(message.spec, DeleteSlice | ClearHost):
            self._overtake(message.spec.allocation_id)
        task = asyncio.create_task(self._run(message), name=message.task_id)
        self._running[message.task_id] = (message, task)

    def acknowledge(self, task_id: str) -> None:
        self._unheard.pop(task_id, None)

    def report_again(self, *, older_than: float = 0.0) -> None:
        """Send unacknowledged results again: all of them after a reconnect, otherwise the old ones."""
        now = time.monotonic()
        for unheard in list(self._unheard.values()):
            if now - unheard.sent_at >= older_than:
                self._report(unheard.result)

    async def aclose(self) -> None:
        """Drop running tasks where they are: the platform delivers them again."""
        tasks = [task for _, task in self._running.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _overtake(self, allocation_id: str) -> None:
        """Cancel the tasks of a machine that is about to be deleted."""
        for message, task in self._running.values():
            if _subject(message) == allocation_id and not isinstance(message.spec, DeleteSlice | ClearHost):
                self._overtaken.add(message.task_id)
                task.cancel()

    def _report(self, result: TaskResult) -> None:
        self._unheard[result.task_id] = _Unheard(result, time.monotonic())
        self._send(result)

    async def _run(self, message: TaskMessage) -> None:
        with bound_contextvars(correlation_id=message.correlation_id):
            started = time.monotonic()
            try:
                result = await self._result(message)
            except asyncio.CancelledError:
                if message.task_id not in self._overtaken:
                    raise
                result = TaskResult(task_id=message.task_id, ok=False, message="overtaken by the machine's release")
            finally:
                self._overtaken.discard(message.task_id)
                self._running.pop(message.task_id, None)
            log.log(
                logging.INFO if result.ok else logging.ERROR,
                "%s %s of %s %s in %.2f s%s",
                message.spec.kind,
                message.task_id,
                _subject(message),
                "done" if result.ok else "failed",
                time.monotonic() - started,
                f": {result.message}" if result.message else "",
            )
            self._report(result)

    async def _result(self, message: TaskMessage) -> TaskResult:
        def progress(step: str, text: str) -> None:
            log.info("%s: %s: %s", message.spec.kind, step, text)
            self._send(TaskProgress(task_id=message.task_id, step=step, message=text[:2_000]))

        try:
            async with self._locks.hold(_turn(message)):
                path = await self._attempts(message, progress)
            return TaskResult(task_id=message.task_id, ok=True, path=path)
        except PeopleRefusedError as error:
            return TaskResult(task_id=message.task_id, ok=False, message=str(error)[:4_000], refused=error.refused)
        except AgentError as error:
            return TaskResult(task_id=message.task_id, ok=False, message=str(error)[:4_000])
        except Exception as error:
            log.exception("bug: %s", message.spec.kind)
            text = f"the agent has a bug, its log has the details: {error!r}"
            return TaskResult(task_id=message.task_id, ok=False, message=text[:4_000])

    async def _attempts(self, message: TaskMessage, progress: Progress) -> str | None:
        pauses = Backoff(first_delay=0.5, longest_delay=10).delays()
        deadline = time.monotonic() + self._retry_seconds
        while True:
            try:
                return await self._execute(message, progress)
            except RetryLaterError as error:
                pause = next(pauses)
                if time.monotonic() + pause > deadline:
                    raise
                progress("wait", f"{error}; next attempt in {pause:.1f} s")
                await asyncio.sleep(pause)
