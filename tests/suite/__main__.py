"""Runs `make test`, and parts of it: everything side by side, all failures at the end, with a table of times."""

import argparse
import asyncio
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from datetime import UTC, datetime
from pathlib import Path

from tests.suite import report
from tests.suite.load import busy_cores
from tests.suite.parts import PARTS, ROOT, Part, named
from tests.suite.results import PartResult, Result
from tests.suite.running import Suite

DIRECTORY = ROOT / "build" / "test"
"""The output of the parts; of several rounds, each has a directory of its own below it."""


def parser() -> argparse.ArgumentParser:
    root = argparse.ArgumentParser(prog="python -m tests.suite", description=__doc__)
    root.add_argument("parts", nargs="*", help=f"all, or some of: {', '.join(part.name for part in PARTS)}")
    root.add_argument("--began", type=float, help="when set-up began, in seconds since 1970: it counts, too")
    root.add_argument("--rounds", type=int, default=1, help="run everything so many times")
    root.add_argument("--shake", action="store_true", help="in random order, with every core kept busy beside it")
    root.add_argument("--limit", type=float, default=40, help="minutes after which a step is ended")
    return root


def cpu_seconds() -> tuple[float, float]:
    """Read how long all cores have worked, and how long they could have, since the machine started."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    ticks = os.sysconf("SC_CLK_TCK")
    return (sum(fields) - fields[3] - fields[4]) / ticks, sum(fields) / ticks


def commit() -> str:
    words = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    return subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip() or "unknown"


def run_round(parts: tuple[Part, ...], arguments: argparse.Namespace, seed: int, directory: Path) -> bool:
    """Return whether everything passed; an interrupt goes on to the caller, after the table."""
    os.environ["GPUAAS_SEED"] = str(seed)
    os.environ["GPUAAS_SHUFFLE"] = "1" if arguments.shake else ""
    began, (busy, possible) = time.time(), cpu_seconds()
    suite = Suite(parts, directory, limit=arguments.limit * 60, shown=len(parts) == 1)
    suite.say(f"seed {seed}, which GPUAAS_SEED={seed} repeats; what each part prints is in {directory}")
    results = list(suite.results.values())
    try:
        with busy_cores() if arguments.shake else nullcontext():
            asyncio.run(suite.run())
    except KeyboardInterrupt:
        for name in suite.unfinished:
            suite.results[name].results.append(Result(name, "failed", 0, "stopped by hand before its end"))
        raise
    finally:
        if arguments.began:
            results.insert(0, PartResult("set-up", 2, began - arguments.began, [Result("set-up", "passed", 0)]))
        (directory / "times.txt").write_text("\n".join(report.slowest(results)) + "\n")
        worked, could = cpu_seconds()
        notes = [
            f"seed {seed}, commit {commit()}, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC, "
            f"{100 * (worked - busy) / (could - possible):.0f} % of {os.cpu_count()} cores in use"
        ]
        print(report.closing(results, time.time() - (arguments.began or began), notes), flush=True)
    return not any(result.count("failed") for result in results)


def main() -> int:
    # Where a shell started this in the background, it and all its children would not hear an interrupt.
    for interrupt in (signal.SIGINT, signal.SIGTERM):
        signal.signal(interrupt, signal.default_int_handler)
    arguments = parser().parse_args()
    parts = named(tuple(arguments.parts))
    first_seed = int(os.environ.get("GPUAAS_SEED") or secrets.randbelow(2**31))
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    passed: list[bool] = []
    try:
        for number in range(arguments.rounds):
            directory = DIRECTORY / f"round-{number + 1}" if arguments.rounds > 1 else DIRECTORY
            directory.mkdir(parents=True)
            passed.append(run_round(parts, arguments, first_seed + number, directory))
    except KeyboardInterrupt:
        return 130
    if arguments.rounds > 1:
        print(f"{sum(passed)} of {len(passed)} rounds passed")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
