"""Note which files of this repository a process uses, for which test module. Python imports this by its name at start,
so that it also works in every process that the tests start.

A file is used when one of its functions runs, or when it is opened and is no Python file. What runs while a module is
imported does not count: otherwise every test would use everything."""

import ast
import builtins
import mmap
import os
import sys
import threading
from importlib.machinery import SourceFileLoader
from types import CodeType, ModuleType
from typing import Any

DIRECTORY = "GPUAAS_RECORDING"
"""The environment variable that names the directory of a recording."""
SHOWN, NOTES = "shown", "notes"
"""Files in it: the number of the test module that runs now, in memory that all processes share; and what was noted."""
USED = "__gpuaas_used__"
ROOT = os.path.realpath(f"{__file__}/../../../..") + "/"
CODE = ("packages/", "stack/", "apps/")
DATA = (*CODE, "docs/")


class Recorder:
    def __init__(self, directory: str) -> None:
        with open(f"{directory}/{SHOWN}", "r+b") as shown:
            self._shown = mmap.mmap(shown.fileno(), 2)
        # Appended line by line and at once: API processes are killed.
        self._notes = os.open(f"{directory}/{NOTES}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
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

    def used(self, path: str) -> None:
        """Called by each function of ours when it begins."""
        if not getattr(self._thread, "imports", 0):
            self.note(path)

    def instrument(self) -> None:
        """Let each function of ours say that it begins, from the import of its module on. To trace every call, also in
        other people's code, would take many times as long."""
        get_code, exec_module = SourceFileLoader.get_code, SourceFileLoader.exec_module

        def get_instrumented_code(loader: SourceFileLoader, name: str) -> CodeType | None:
            file = loader.get_filename(name)
            path = _inside(file, CODE)
            if not path:
                return get_code(loader, name)
            # Compiled anew, and never kept: other runs are to find the code as it is.
            code: CodeType = compile(_saying(loader.get_data(file), path), file, "exec", dont_inherit=True)
            return code

        def exec_counted_module(loader: SourceFileLoader, module: ModuleType) -> None:
            self._thread.imports = getattr(self._thread, "imports", 0) + 1
            try:
                exec_module(loader, module)
            finally:
                self._thread.imports -= 1

        SourceFileLoader.get_code = get_instrumented_code  # type: ignore[method-assign, assignment]
        SourceFileLoader.exec_module = exec_counted_module  # type: ignore[method-assign, assignment]
        setattr(builtins, USED, self.used)

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


def _saying(source: bytes, path: str) -> ast.Module:
    """The module with a call at the beginning of each function, behind its docstring."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            call = ast.Expr(ast.Call(ast.Name(USED, ast.Load()), [ast.Constant(path)], []))
            node.body.insert(1 if ast.get_docstring(node, clean=False) is not None else 0, call)
    return ast.fix_missing_locations(tree)


def start(directory: str) -> Recorder:
    recorder = Recorder(directory)
    sys.addaudithook(recorder.audit)
    recorder.instrument()
    return recorder


if __name__ == "sitecustomize" and DIRECTORY in os.environ:
    start(os.environ[DIRECTORY])
