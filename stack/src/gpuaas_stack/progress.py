"""Lines that say what happens and how long it took: live in a terminal, one line per phase elsewhere."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.table import Table


@dataclass
class Phase:
    title: str
    started: float = field(default_factory=time.monotonic)
    note: str = ""

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started


class Progress:
    """Phases may overlap (threads); each is printed once, when it ends."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False, soft_wrap=True)
        self.timings: dict[str, float] = {}
        self.started = time.monotonic()
        self._open: list[Phase] = []
        self._lock = threading.Lock()
        self._live: Live | None = None

    def __enter__(self) -> Progress:
        if self.console.is_terminal:
            self._live = Live(get_renderable=self._render, console=self.console, refresh_per_second=8, transient=True)
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._live.stop()
            self._live = None

    @contextlib.contextmanager
    def phase(self, title: str) -> Iterator[Phase]:
        """One phase with its time. Set `note` inside to add a word to its line."""
        phase = Phase(title)
        with self._lock:
            self._open.append(phase)
        try:
            yield phase
        except BaseException:
            self._close(phase, "[red]✗[/red]")
            raise
        self.timings[title] = phase.seconds
        self._close(phase, "[green]✓[/green]")

    def say(self, text: str) -> None:
        self.console.print(text)

    def total(self) -> float:
        return time.monotonic() - self.started

    def _close(self, phase: Phase, mark: str) -> None:
        with self._lock:
            self._open.remove(phase)
        note = f"  [dim]{phase.note}[/dim]" if phase.note else ""
        self.console.print(f" {mark} {phase.title:<34} {phase.seconds:7.1f} s{note}")

    def _render(self) -> Table:
        table = Table.grid(padding=(0, 1))
        with self._lock:
            for phase in self._open:
                table.add_row(Spinner("dots"), f"{phase.title:<34} {phase.seconds:7.1f} s")
        return table
