"""Tunnels of the command line, as scripts use them."""

import asyncio
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


class OpenTunnel:
    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.said: dict[str, Any] = {}

    async def ready(self) -> None:
        assert self.process.stdout is not None
        text = ""
        while not text.endswith("}\n"):
            line = await asyncio.to_thread(self.process.stdout.readline)
            assert line, f"it ended: {self.process.stderr.read() if self.process.stderr else ''}"
            text += line
        self.said = json.loads(text)

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection(self.said["local_address"], self.said["local_port"])

    async def ended(self) -> tuple[int, str]:
        """Its exit code, and what it said."""
        code = await asyncio.to_thread(self.process.wait, 60)
        assert self.process.stderr is not None
        return code, self.process.stderr.read()


@contextmanager
def ended_with(process: "subprocess.Popen[str]") -> Iterator[OpenTunnel]:
    try:
        yield OpenTunnel(process)
    finally:
        process.kill()
        process.wait()
