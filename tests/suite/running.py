"""Runs the parts, some at a time, and every part whatever became of the ones before it."""

import asyncio
import os
import re
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.suite.parts import ALLOWED_SKIPS, BESIDE, RESULTS, ROOT, Part, Step
from tests.suite.report import minutes
from tests.suite.results import Outcome, PartResult, Result, settle_skips, take_results

NEWS_SECONDS = 60
LAST_LINES = 60
GRACE_SECONDS = 90
TIMED_OUT = 124
"""The status of a step that was ended because it took too long, as that of timeout(1)."""
PERCENT = re.compile(r"\[ *(\d+)%\]")


class Suite:
    def __init__(self, parts: Sequence[Part], directory: Path, *, limit: float, shown: bool) -> None:
        """`limit`: seconds after which a step is ended, so that one that hangs cannot hide the others.
        `shown`: write what the steps print to the terminal, not to files."""
        self._waiting = list(parts)
        self._directory = directory
        self._limit = limit
        self._shown = shown
        self._began = time.monotonic()
        self._logs: dict[str, Path] = {}
        self.results = {part.name: PartResult(part.name, part.budget) for part in parts}
        self.unfinished = [part.name for part in parts]

    async def run(self) -> None:
        news = asyncio.create_task(self._tell_news())
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(BESIDE):
                    group.create_task(self._run_parts())
        finally:
            news.cancel()

    def say(self, words: str) -> None:
        print(f"{minutes(time.monotonic() - self._began):>6}  {words}", flush=True)

    async def _run_parts(self) -> None:
        while self._waiting:
            part = self._waiting.pop(0)
            try:
                await self._run_part(part)
            except OSError as error:
                # A program that is not there, for example: the other parts run all the same.
                self.results[part.name].results.append(Result(part.name, "failed", 0, f"cannot run it: {error}"))
                self.unfinished.remove(part.name)

    async def _run_part(self, part: Part) -> None:
        self.say(f"{part.name} …")
        began = time.monotonic()
        result = self.results[part.name]
        directory = self._directory / part.name
        directory.mkdir(parents=True, exist_ok=True)
        for step in part.steps:
            result.results += await self._run_step(part.name, step, directory)
            result.seconds = time.monotonic() - began
        self.unfinished.remove(part.name)
        failed = [each.name for each in result.results if each.outcome == "failed"]
        verdict = f"FAILED ({', '.join(failed[:3])}{', …' if len(failed) > 3 else ''})" if failed else "passed"
        self.say(f"{part.name} {verdict}: {len(result.results)} in {minutes(result.seconds)}")

    async def _run_step(self, part: str, step: Step, directory: Path) -> list[Result]:
        log = directory / f"{step.name.replace(' ', '-')}.log"
        self._logs[part] = log
        began = time.monotonic()
        status = await self._run_command(step, directory, log)
        seconds = time.monotonic() - began
        self._logs.pop(part)
        results = settle_skips(take_results(directory), ALLOWED_SKIPS)
        if status == 0 and not results:
            ran_nothing = step.runs_tests
            outcome: Outcome = "failed" if ran_nothing else "passed"
            results = [Result(step.name, outcome, seconds, "it ran no test" if ran_nothing else "")]
        # pytest ends with 1 where tests failed. With anything else it was cut off, and results are missing.
        if status not in (0, 1) or (status == 1 and not any(each.outcome == "failed" for each in results)):
            results.append(Result(step.name, "failed", seconds, self._last_words(step, status, log)))
        return results

    async def _run_command(self, step: Step, directory: Path, log: Path) -> int:
        words = [word.replace(RESULTS, str(directory)) for word in step.words]
        environment = {**os.environ, **step.environment, "GPUAAS_TEST_RESULTS": str(directory)}
        # Hundreds of processes start: each would compile everything anew.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        with log.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                *words,
                cwd=ROOT,
                env=environment,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=None if self._shown else file,
                stderr=None if self._shown else asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                return await asyncio.wait_for(process.wait(), self._limit)
            except TimeoutError:
                file.write(f"\nended: it took more than {minutes(self._limit)} minutes\n".encode())
                await self._end(process)
                return TIMED_OUT
            except asyncio.CancelledError:
                await self._end(process)
                raise

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        """Ask first, so that it removes its machines and servers; then end whatever of it is left."""
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        with suppress(TimeoutError):
            await asyncio.wait_for(process.wait(), GRACE_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()

    def _last_words(self, step: Step, status: int, log: Path) -> str:
        lines = log.read_text(errors="replace").splitlines()[-LAST_LINES:]
        return "\n".join([f"exit status {status}: {' '.join(step.words)}", *lines])

    async def _tell_news(self) -> None:
        while not self._shown:
            await asyncio.sleep(NEWS_SECONDS)
            self.say("; ".join(f"{part} {_progress(log)}".strip() for part, log in self._logs.items()))


def _progress(log: Path) -> str:
    found = PERCENT.findall(log.read_text(errors="replace")) if log.exists() else []
    return f"{found[-1]} %" if found else ""
