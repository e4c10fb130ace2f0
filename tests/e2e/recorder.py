"""Record the smoke suite in build/smoke.json, the only source of the readiness page."""

import json
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.e2e.command_line import CommandLine

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "build" / "smoke.json"
MOST_COMMANDS = 6
"""Commands kept of one step, the newest."""
SAID_LIMIT = 200


class Recorder:
    """Writes the file after every change: a killed run leaves its current step as the last one."""

    def __init__(self, cli: CommandLine, path: Path = RESULTS) -> None:
        self._path = path
        self._steps: list[dict[str, Any]] = []
        done = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True)
        self._head = {"started_at": _now(), "commit": done.stdout.strip()}
        cli.listeners.append(self._heard)
        self._write()

    @contextmanager
    def step(self, title: str) -> Iterator[None]:
        began = time.monotonic()
        step: dict[str, Any] = {"title": title, "at": _now(), "ok": None, "seconds": None, "evidence": []}
        self._steps.append(step)
        self._write()
        step["ok"] = False
        try:
            yield
            step["ok"] = True
        finally:
            step["seconds"] = round(time.monotonic() - began, 1)
            commands = [each for each in step["evidence"] if each["kind"] == "command"]
            step["evidence"] = [each for each in step["evidence"] if each not in commands[:-MOST_COMMANDS]]
            self._write()

    def note(self, kind: str, **facts: Any) -> None:
        """Add evidence to the current step."""
        if self._steps and self._steps[-1]["seconds"] is None:
            self._steps[-1]["evidence"].append({"kind": kind, "at": _now(), **facts})

    def note_receipt(self, receipt: dict[str, Any], of: str) -> None:
        """Summarize a receipt: how much was checked, what was left, and some checks. The operation has all of it."""
        machines = [
            {
                "machine": member["hostname"],
                "checks": len(member["checks"]),
                "left": [check for check in member["checks"] if check["ok"] is not True],
                "some": member["checks"][:3],
            }
            for member in receipt["members"]
        ]
        self.note("receipt", of=of, ok=receipt["ok"], machines=machines)

    def _heard(self, line: str, done: "subprocess.CompletedProcess[str]") -> None:
        if line.startswith("gpuaas instance receipt") and done.returncode == 0:
            self.note_receipt(json.loads(done.stdout), of=line)
            return
        # The end of a JSON document says nothing by itself.
        said = "" if line.endswith("-o json") else (done.stdout.strip() or done.stderr.strip())[-SAID_LIMIT:]
        self.note("command", command=line, exit_status=done.returncode, said=said)

    def _write(self) -> None:
        self._path.parent.mkdir(exist_ok=True)
        self._path.write_text(json.dumps({**self._head, "steps": self._steps}, indent=1))


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")
