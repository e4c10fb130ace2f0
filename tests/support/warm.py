"""API processes that start at once: forked from a process that has imported everything and done nothing yet.

What runs in them is `gpuaas-platform serve`, with an environment, a port and a log of its own."""

import gc
import importlib
import multiprocessing
import os
import sys
import threading
from multiprocessing.process import BaseProcess
from pathlib import Path

from gpuaas_platform.main import main

_LATE = (
    "gpuaas_platform.serving",
    "anyio._backends._asyncio",
    "uvicorn.lifespan.on",
    "uvicorn.loops.auto",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.websockets.auto",
)
"""Modules that a server would import only when it starts."""

for name in _LATE:
    importlib.import_module(name)
# What is there now stays. A server collects garbage when it starts, and would copy all the memory that it shares here.
gc.collect()
gc.freeze()

# A test that has imported the command line has made all models lazy, also for the processes that it starts.
os.environ["GPUAAS_LAZY_MODELS"] = ""

_context = multiprocessing.get_context("forkserver")
_context.set_forkserver_preload([__name__])


def start(environment: dict[str, str], log: Path) -> BaseProcess:
    process = _context.Process(target=_serve, args=(environment, log), daemon=True)
    process.start()
    return process


def _serve(environment: dict[str, str], log: Path) -> None:
    threading.Thread(target=_end_with_the_tests, daemon=True).start()
    os.environ.clear()
    os.environ.update(environment)
    descriptor = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    for standard in (1, 2):
        os.dup2(descriptor, standard)
    sys.argv = ["gpuaas-platform", "serve"]
    main()


def _end_with_the_tests() -> None:
    """Also when they are killed, and can end nothing any more."""
    tests = multiprocessing.parent_process()
    assert tests is not None
    tests.join()
    os._exit(1)
