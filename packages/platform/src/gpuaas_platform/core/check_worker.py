"""The process that runs other people's schemas: `python -m gpuaas_platform.core.check_worker`.

It reads requests from its standard input and writes answers to its standard output, each with its length before it,
until the input ends. It has no secrets, and the kernel ends it when it takes too long or too much memory."""

import json
import math
import os
import resource
import struct
import sys
import traceback
from contextlib import suppress
from typing import IO, Any

from gpuaas_contract.json_schemas import find_value_problems
from gpuaas_contract.manifest import Manifest
from gpuaas_contract.manifest_rules import find_manifest_problems

LENGTH = struct.Struct(">I")
MEMORY_BYTES = 512 << 20
NICENESS = 5
"""Requests that everybody waits for come first."""


def limit_process() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.nice(NICENESS)
    # Where memory is short, this goes first, and another takes its place.
    with suppress(OSError), open("/proc/self/oom_score_adj", "w") as file:
        file.write("1000")


def limit_next(seconds: int) -> None:
    """The kernel counts whole seconds since the process began, and kills by SIGXCPU."""
    soft = math.ceil(_used_seconds()) + seconds
    resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.RLIM_INFINITY))


def _used_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def check(request: dict[str, Any], answers: IO[bytes]) -> list[dict[str, str]]:
    if request["schema"] is None:
        manifest = Manifest.model_validate(request["document"])
        problems = find_manifest_problems(manifest, lambda pointer: write(answers, {"at": pointer}))
    else:
        problems = find_value_problems(request["document"], request["schema"], request["pointer"])
    return [{"pointer": problem.pointer, "detail": problem.detail} for problem in problems]


def answer(request: dict[str, Any], answers: IO[bytes]) -> dict[str, Any]:
    began = _used_seconds()
    try:
        found: dict[str, Any] = {"problems": check(request, answers)}
    except MemoryError:
        found = {"out_of_memory": True}
    except Exception:  # noqa: BLE001 - a mistake of ours is told to those who asked
        found = {"error": traceback.format_exc(limit=20)[-4_000:]}
    return {**found, "seconds": _used_seconds() - began, "memory": _memory()}


def _memory() -> int:
    # Not the peak: a process inherits that of the one that started it.
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * resource.getpagesize()


def read(source: IO[bytes]) -> Any:
    head = source.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    return json.loads(source.read(*LENGTH.unpack(head)))


def write(target: IO[bytes], document: dict[str, Any]) -> None:
    content = json.dumps(document).encode()
    target.write(LENGTH.pack(len(content)) + content)
    target.flush()


def main() -> None:
    limit_process()
    seconds = int(sys.argv[1])
    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    while (request := read(requests)) is not None:
        limit_next(seconds)
        write(answers, answer(request, answers))


if __name__ == "__main__":
    with suppress(BrokenPipeError, KeyboardInterrupt):
        main()
