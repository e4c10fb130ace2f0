"""Note which files of this repository a process uses, for which test module. Python imports this by its name at start,
so that it also works in every process that the tests start.

A file is used when one of its functions runs, or when it is opened and is no Python file. What runs while a module is
imported does not count: otherwise every test would use everything."""

import mmap
import os
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import Any

DIRECTORY = "GPUAAS_RECORDING"
"""The environment variable that names the directory of a recording."""
SHOWN, NOTES = "shown", "notes"
"""Files in it: the number of the test module that runs now, in memory that all processes share; and what was noted."""
ROOT = os.path.realpath(f"{__file__}/../../../..") + "/"
CODE = ("packages/", "stack/", "apps/")
DATA = (*CODE, "docs/")


class Recorder:
    def __init__(self, directory: str) -> None:
        with open(f"{directory}/{SHOWN}", "r+b") as shown:
            self._shown = mmap.mmap(shown.fileno(), 2)
        # Appended line by line and at once: API processes are killed.
        self._notes = os.open(f"{directory}/{NOTES}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._paths: dict[str, str] = {}
        self._noted: set[tuple[bytes, str]] = set()
        self._thread = threading.local()

    def show(self, number: int) -> int:
        """Say which test module runs from now on; return which one did before."""
        before = int.from_bytes(self._shown[:2])
        self._shown[:2] = number.to_bytes(2)
        return before

    def note(self, path: str) -> None:
        seen = (self._shown[:2], path)
        if seen not in self._noted:
            self._noted.add(seen)
            os.write(self._notes, f"{int.from_bytes(seen[0])} {path}\n".encode())

    def trace(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any] | None:
        """Called by Python for each function that begins; return a tracer only for what has to be seen to its end."""
        name = frame.f_code.co_filename
        path = self._paths.get(name)
        if path is None:
            path = self._paths[name] = _inside(name, CODE)
        if not path:
            return None
        if frame.f_code.co_name == "<module>":
            self._thread.imports = getattr(self._thread, "imports", 0) + 1
            frame.f_trace_lines = False
            return self._imported
        if not getattr(self._thread, "imports", 0):
            self.note(path)
        return None

    def _imported(self, frame: FrameType, event: str, argument: Any) -> Callable[..., Any]:
        if event == "return":
            self._thread.imports -= 1
        return self._imported

    def audit(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event == "open" and isinstance(arguments[0], str) and (path := _inside(arguments[0], DATA)):
            self.note(path)


def _inside(name: str, places: tuple[str, ...]) -> str:
    """The path from the root of the repository, or nothing for files that are not ours."""
    path = os.path.abspath(name)
    if not path.startswith(ROOT):
        return ""
    path = path.removeprefix(ROOT)
    is_code = path.endswith(".py") or "__pycache__" in path
    return path if path.startswith(places) and is_code == (places is CODE) and "/tests/" not in path else ""


def start(directory: str) -> Recorder:
    recorder = Recorder(directory)
    sys.addaudithook(recorder.audit)
    threading.settrace(recorder.trace)
    sys.settrace(recorder.trace)
    return recorder


if __name__ == "sitecustomize" and DIRECTORY in os.environ:
    start(os.environ[DIRECTORY])
