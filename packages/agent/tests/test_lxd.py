"""LXD's answers, as the agent's two families of errors."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gpuaas_agent.errors import LxdError, LxdUnavailableError, reason_of
from gpuaas_agent.lxd import Lxd


class Daemon:
    """Says what the test told it to say, in LXD's envelope."""

    def __init__(self) -> None:
        self.answers: dict[str, dict[str, Any]] = {}
        self.asked: list[str] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        method, path, _ = head.split(" ", 2)
        self.asked.append(f"{method} {path}")
        answer = self.answers.get(path.partition("?")[0], error(404, "not found"))
        body = json.dumps(answer).encode()
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body))
        writer.write(body)
        await writer.drain()
        writer.close()


def error(code: int, message: str) -> dict[str, Any]:
    return {"type": "error", "error_code": code, "error": message}


def sync(metadata: Any) -> dict[str, Any]:
    return {"type": "sync", "metadata": metadata}


def operation(code: int, message: str = "") -> dict[str, Any]:
    return sync({"status_code": code, "err": message, "metadata": None, "description": "Deleting instance"})


@pytest.fixture
async def daemon(tmp_path: Path) -> AsyncIterator[Daemon]:
    made = Daemon()
    async with await asyncio.start_unix_server(made.serve, tmp_path / "lxd.socket"):
        yield made


@pytest.fixture
async def lxd(tmp_path: Path) -> AsyncIterator[Lxd]:
    client = Lxd(tmp_path / "lxd.socket")
    yield client
    await client.aclose()


async def test_a_daemon_that_is_away_comes_back_later(lxd: Lxd) -> None:
    with pytest.raises(LxdUnavailableError, match="does not answer at") as caught:
        await lxd.read_server()
    assert "ConnectError" not in str(caught.value), "words, not the name of a class"


def test_an_error_without_words_is_named_by_its_kind() -> None:
    assert reason_of(TimeoutError()) == "TimeoutError"
    assert reason_of(OSError("refused")) == "refused"


async def test_what_is_not_there_is_none_and_other_errors_are_raised(daemon: Daemon, lxd: Lxd) -> None:
    assert await lxd.find_instance("alc-1") is None
    daemon.answers["/1.0/instances/alc-1"] = error(500, "disk full")
    with pytest.raises(LxdError, match="disk full"):
        await lxd.find_instance("alc-1")


async def test_an_operation_is_waited_for(daemon: Daemon, lxd: Lxd) -> None:
    daemon.answers["/1.0/instances/alc-1"] = {"type": "async", "operation": "/1.0/operations/o1"}
    daemon.answers["/1.0/operations/o1/wait"] = operation(200)
    await lxd.delete_instance("alc-1")
    daemon.answers["/1.0/operations/o1/wait"] = operation(400, "it is busy")
    with pytest.raises(LxdError, match="it is busy"):
        await lxd.delete_instance("alc-1")
    del daemon.answers["/1.0/operations/o1/wait"]
    with pytest.raises(LxdUnavailableError, match="lost the operation"):
        await lxd.delete_instance("alc-1")


async def test_only_what_changes_this_instance_is_waited_for(daemon: Daemon, lxd: Lxd) -> None:
    def running(name: str, kind: str, instance: str) -> dict[str, Any]:
        return {"id": name, "class": kind, "resources": {"instances": [f"/1.0/instances/{instance}"]}}

    daemon.answers["/1.0/operations"] = sync(
        {
            "running": [
                running("other", "task", "alc-2"),
                running("shell", "websocket", "alc-1"),
                running("mine", "task", "alc-1"),
            ]
        }
    )
    daemon.answers["/1.0/operations/mine/wait"] = operation(400, "it failed")
    await lxd.settle_instance("alc-1")
    assert [path.split("/")[3] for path in daemon.asked[1:]] == ["mine"]
