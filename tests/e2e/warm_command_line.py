"""The `gpuaas` program without its start: each call runs in a process forked from one that has imported everything.

What runs is `gpuaas_cli.main:main`, with arguments, environment, standard files and an exit code of its own, as where
the installed program is started; test_command_line.py compares the two. Called as a program, this is the process that
the others are forked from: it ends with the socket that the tests hold."""

import asyncio
import gc
import importlib
import json
import os
import pkgutil
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO

import gpuaas_cli
import gpuaas_contract
import gpuaas_sdk
from gpuaas_cli.main import app, main
from gpuaas_sdk.credentials import StaticToken

_LATE = ("anyio._backends._asyncio", "rich.live", "rich.table", "websockets.asyncio.client")
"""Modules of other packages that a command imports only when it runs."""
_NUMBER = struct.Struct("!i")
_LONGEST_REQUEST = 1024 * 1024


class Warm:
    """Runs commands, also several at once from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._server: socket.socket | None = None

    def run(
        self, program: Path, words: list[str], *, stdin: str, env: dict[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            given.write(stdin.encode())
            given.seek(0)
            status = self._status([str(program), *words], env, [given, out, err], timeout)
            said, complained = (_text(file) for file in (out, err))
        return subprocess.CompletedProcess([str(program), *words], status, said, complained)

    def _status(self, argv: list[str], env: dict[str, str], files: list[IO[bytes]], timeout: float) -> int:
        with self._asked(argv, env, files) as answer:
            pid = _received(answer)
            answer.settimeout(timeout)
            try:
                return os.waitstatus_to_exitcode(_received(answer))
            except TimeoutError:
                os.kill(pid, signal.SIGKILL)
                raise subprocess.TimeoutExpired(argv, timeout) from None

    def _asked(self, argv: list[str], env: dict[str, str], files: list[IO[bytes]]) -> socket.socket:
        own, theirs = socket.socketpair()
        with theirs:
            request = json.dumps({"argv": argv, "env": env, "cwd": str(Path.cwd())}).encode()
            descriptors = [theirs.fileno(), *(file.fileno() for file in files)]
            with self._lock:
                self._server = self._server or _start_server()
                socket.send_fds(self._server, [request], descriptors)
        return own


def _start_server() -> socket.socket:
    own, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        environment = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "GPUAAS_LAZY_MODELS": ""}
        words = [sys.executable, "-m", __name__, str(theirs.fileno())]
        subprocess.Popen(words, env=environment, pass_fds=[theirs.fileno()], cwd=Path(__file__).parents[2])
    return own


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


def _received(answer: socket.socket) -> int:
    data = answer.recv(_NUMBER.size, socket.MSG_WAITALL)
    assert data, "the process that runs commands has ended"
    return int(_NUMBER.unpack(data)[0])


async def get_ready() -> None:
    """Import and build everything that any command needs."""
    for package in (gpuaas_contract, gpuaas_sdk, gpuaas_cli):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if "skeleton" not in module.name and not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    for name in _LATE:
        importlib.import_module(name)
    for command in app:
        app.parse_known_args([command, "--help"])
    async with gpuaas_sdk.GpuaasClient("http://127.0.0.1:9", StaticToken("")):
        """Has loaded the trusted certificates."""


def serve(requests: socket.socket) -> None:
    """Fork each command; send its process id and its exit status."""
    asyncio.run(get_ready())
    gc.freeze()
    waiting = selectors.DefaultSelector()
    waiting.register(requests, selectors.EVENT_READ)
    while True:
        for key, _ in waiting.select():
            if key.fileobj is not requests:
                waiting.unregister(key.fileobj)
                end(key)
            elif not begin(requests, waiting):
                return


def begin(requests: socket.socket, waiting: selectors.BaseSelector) -> bool:
    message, descriptors, _, _ = socket.recv_fds(requests, _LONGEST_REQUEST, 4)
    if not message:
        return False
    answer, *standard = descriptors
    pid = os.fork()
    if pid == 0:
        os.close(answer)
        become(json.loads(message), *standard)
    for descriptor in standard:
        os.close(descriptor)
    os.write(answer, _NUMBER.pack(pid))
    waiting.register(os.pidfd_open(pid), selectors.EVENT_READ, (pid, answer))
    return True


def end(key: selectors.SelectorKey) -> None:
    pid, answer = key.data
    status = os.waitpid(pid, 0)[1]
    with suppress(BrokenPipeError):
        os.write(answer, _NUMBER.pack(status))
    os.close(answer)
    os.close(key.fd)


def become(request: dict[str, object], *standard: int) -> None:
    for number, descriptor in enumerate(standard):
        os.dup2(descriptor, number)
        os.close(descriptor)
    argv, env = request["argv"], request["env"]
    assert isinstance(argv, list)
    assert isinstance(env, dict)
    os.environ.clear()
    os.environ.update(env)
    time.tzset()
    os.chdir(str(request["cwd"]))
    sys.argv = argv
    code = 0
    try:
        main()
    except SystemExit as end:
        # As the interpreter does it: words are said, and mean failure.
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
    # Not through the interpreter's own end, which takes longer than most commands.
    os._exit(code)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
