"""Run the registry behind a gate, and see to it that it leaves room: `python -m gpuaas_stack.registry_guard`.

The gate (`registry_gate.py`) lets in who has a right at that moment; the registry itself listens on a socket that only
its own user can open.

A token to push is issued while there is room, but says nothing of how much is sent with it. So the disk is looked at
twice a second. Below the reserve, the registry is started anew so that it only reads, and uploads that nobody has
finished are dropped; an upload that is larger than any artifact may be is cut and dropped, too."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

from gpuaas_stack.registry_gate import Gate, Keys, Rights

INTERVAL = 0.5
STOP_SECONDS = 5


def uploads(data: Path) -> Iterator[tuple[Path, int]]:
    """Yield the directory and the size of every upload that is not finished."""
    for directory in data.glob("docker/registry/v2/repositories/*/*/*/_uploads/*"):
        try:
            yield directory, (directory / "data").stat().st_size
        except OSError:
            continue


def to_drop(found: list[tuple[Path, int]], free: int, reserve: int, largest: int) -> list[Path]:
    """Choose uploads that must go: all of them where the disk is too full, else those that are too large."""
    return [directory for directory, size in found if free < reserve or size > largest]


def may_write(free: int, reserve: int, writable: bool) -> bool:
    """A little more than the reserve before it writes again: else it would start anew with every file."""
    return free >= (reserve if writable else reserve + reserve // 20)


class Guard:
    def __init__(self, binary: str, data: Path, config: str, read_only: str, *, reserve: int, largest: int) -> None:
        self._data = data
        self._command = {True: [binary, "serve", config], False: [binary, "serve", read_only]}
        self._reserve = reserve
        self._largest = largest
        self._ending = threading.Event()
        self._writable = may_write(self._free(), reserve, writable=True)
        self._child = self._start()

    def _free(self) -> int:
        return shutil.disk_usage(self._data).free

    def _start(self) -> subprocess.Popen[bytes]:
        # It must not outlive us, whatever becomes of us.
        command = ["setpriv", "--pdeathsig=TERM", "--", *self._command[self._writable]]
        return subprocess.Popen(command)

    def _stop(self) -> None:
        self._child.terminate()
        try:
            self._child.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._child.kill()
            self._child.wait()

    def end(self, *_: object) -> None:
        self._ending.set()

    def run(self, gate: threading.Thread) -> int:
        while not self._ending.wait(INTERVAL):
            code = self._child.poll()
            if code is not None:
                return code or 1
            if not gate.is_alive():
                self._stop()
                return 1
            self.look()
        self._stop()
        return 0

    def look(self) -> None:
        free = self._free()
        dropped = to_drop(list(uploads(self._data)), free, self._reserve, self._largest)
        change = may_write(free, self._reserve, self._writable) != self._writable
        if not dropped and not change:
            return
        restart = change or self._writable
        if restart:
            # Whoever sends has the file open: to delete it frees nothing while the registry takes it.
            self._stop()
        for directory in dropped:
            shutil.rmtree(directory, ignore_errors=True)
        if not restart:
            return
        self._writable = may_write(self._free(), self._reserve, writable=True)
        mode = "takes pushes" if self._writable else "only reads"
        print(f"registry guard: {free} bytes free, {len(dropped)} uploads dropped; it {mode}", flush=True)
        self._child = self._start()


def main() -> int:
    parser = argparse.ArgumentParser()
    for name in ("binary", "config", "read-only"):
        parser.add_argument(f"--{name}", required=True)
    parser.add_argument("--data", type=Path, required=True)
    for name in ("reserve", "largest", "port"):
        parser.add_argument(f"--{name}", type=int, required=True)
    for name in ("socket", "certificates"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--ca-file", type=Path, help="by which the platform's own certificate is trusted")
    chosen = parser.parse_args()
    gate = threading.Thread(target=_serve_gate, args=(chosen,), daemon=True)
    gate.start()
    guard = Guard(
        chosen.binary, chosen.data, chosen.config, chosen.read_only, reserve=chosen.reserve, largest=chosen.largest
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, guard.end)
    return guard.run(gate)


def _serve_gate(chosen: argparse.Namespace) -> None:
    async def serve() -> None:
        rights = Rights(Keys(chosen.certificates.read_bytes()), chosen.ca_file)
        await Gate(chosen.socket, rights).serve(chosen.port)

    asyncio.run(serve())


if __name__ == "__main__":
    sys.exit(main())
