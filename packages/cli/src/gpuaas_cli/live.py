"""Live progress on stderr: one line per step, with its time. On a terminal the running one counts."""

import asyncio
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from gpuaas_cli.output import clean, seconds, style
from gpuaas_contract.operations import Operation, Step, StepStatus

REFRESH_SECONDS = 0.2
_SIGNS = {
    "succeeded": ("✓", "ok", "green"),
    "failed": ("✗", "FAILED", "red"),
    "interrupted": ("↯", "interrupted", "dim"),
}


def sign(status: str) -> str:
    symbol, word, colour = _SIGNS[status]
    utf8 = (sys.stderr.encoding or "").lower().startswith("utf")
    return style(symbol if utf8 else word, colour, sys.stderr)


def step_state(step: Step, operation: Operation) -> str:
    """Return a step's status; one left running by a dead controller is interrupted once the next attempt begins."""
    over = step.attempt < operation.attempt or operation.state.is_final
    return "interrupted" if step.status == StepStatus.RUNNING and over else step.status.value


def step_seconds(step: Step) -> float | None:
    return None if step.ended_at is None else (step.ended_at - step.started_at).total_seconds()


@dataclass(frozen=True)
class _Running:
    title: str
    since: datetime


class Progress:
    """Prints each thing once, in the order in which it happened."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, ...]] = set()
        self._operations: dict[str, Operation] = {}
        self._running: list[_Running] = []
        self._counter: asyncio.Task[None] | None = None
        self._is_terminal = sys.stderr.isatty()

    async def __aenter__(self) -> Self:
        if self._is_terminal:
            self._counter = asyncio.create_task(self._count())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._counter is not None:
            self._counter.cancel()
            with suppress(asyncio.CancelledError):
                await self._counter
        self._clear()

    def once(self, key: Sequence[str], line: str) -> None:
        if tuple(key) not in self._seen:
            self._seen.add(tuple(key))
            self._clear()
            print(line, file=sys.stderr, flush=True)

    def show(self, operations: Iterable[Operation]) -> None:
        running: list[_Running] = []
        self._operations.update((operation.id, operation) for operation in operations)
        for operation in sorted(self._operations.values(), key=lambda operation: operation.id):
            head = f"{operation.kind} {style(f'{operation.id}, {operation.correlation_id}', 'dim', sys.stderr)}"
            self.once((operation.id,), head)
            if operation.attempt > 1:
                line = style(f"  attempt {operation.attempt}", "yellow", sys.stderr)
                self.once((operation.id, str(operation.attempt)), line)
            for step in operation.steps:
                self._show_step(operation, step, running)
        self._running = running

    def _show_step(self, operation: Operation, step: Step, running: list[_Running]) -> None:
        key = (operation.id, str(step.attempt), step.key)
        state = step_state(step, operation)
        # With several operations, each line names its own.
        title = clean(f"{operation.kind}: {step.title}" if len(self._operations) > 1 else step.title)
        message = clean(step.message)
        if state == "running":
            running.append(_Running(title, step.started_at))
            if not self._is_terminal:
                self.once((*key, message), f"  … {title}" + (f": {message}" if message else ""))
            return
        took = step_seconds(step)
        details = [message, seconds(took) if took is not None else ""]
        line = "  ".join(part for part in (f"  {sign(state)} {title}", *details) if part)
        self.once((*key, state), line)

    async def _count(self) -> None:
        while True:
            self._clear()
            if self._running:
                now = datetime.now(UTC)
                parts = [f"{r.title} {seconds((now - r.since).total_seconds())}" for r in self._running]
                print(f"  … {', '.join(parts)}"[:200], end="", file=sys.stderr, flush=True)
            await asyncio.sleep(REFRESH_SECONDS)

    def _clear(self) -> None:
        if self._is_terminal:
            print("\r\x1b[K", end="", file=sys.stderr)
