"""For tests of programs that use the SDK: the one trivial fake at each seam, and time that jumps."""

import asyncio
import inspect
import pkgutil
import selectors
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from importlib import import_module
from types import ModuleType

import httpx

import gpuaas_sdk
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import Credentials, StaticToken
from gpuaas_sdk.machines.base import CommandError, CommandResult
from gpuaas_sdk.retry import RetryPolicy
from gpuaas_sdk.runtime.receipts import MARK

Answer = httpx.Response | Exception
_WALL_START = datetime(2030, 1, 1, tzinfo=UTC)
FAST = RetryPolicy(attempts=4, first_delay=0.001, longest_delay=0.002)


class ScriptedPlatform:
    """Records every request. Answers are taken in their order; the last one stays."""

    def __init__(self, *answers: Answer | Callable[[httpx.Request], Answer]) -> None:
        self.answers = list(answers)
        self.requests: list[httpx.Request] = []

    async def __call__(self, request: httpx.Request) -> httpx.Response:
        await request.aread()
        self.requests.append(request)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if callable(answer):
            answer = answer(request)
        if isinstance(answer, Exception):
            raise answer
        # A copy: a response object is used up by its first reader.
        return httpx.Response(answer.status_code, headers=answer.headers, content=answer.content)

    def client(self, credentials: Credentials | None = None) -> GpuaasClient:
        return GpuaasClient(
            "http://platform.test",
            credentials or StaticToken("t0ken"),
            retry=FAST,
            transport=httpx.MockTransport(self),
        )


def problem(code: str, status: int, **more: object) -> httpx.Response:
    """An answer in problem+json, as the platform would make it."""
    body = {
        "type": f"https://gpuaas.dev/problems/{code}",
        "title": code,
        "status": status,
        "detail": f"cannot do it: {code}",
        "code": code,
        "correlation_id": "cor_1",
        **more,
    }
    return httpx.Response(status, json=body, headers={"content-type": "application/problem+json"})


@dataclass
class FakeMachine:
    """Records what it is asked, and answers what it was told to: for "given facts, expect commands". Whether a script
    works is only shown by a real machine."""

    hostname: str = "node-1"
    address: str = "10.0.0.1"
    allocation_id: str = "alc_1"
    answers: dict[str, CommandResult | Exception] = field(default_factory=dict)
    """By a piece of the script, or by the name of the step. Success without a word where nothing fits."""
    reads: list[str] = field(default_factory=list)
    steps: dict[str, str] = field(default_factory=dict)
    """The newest script of each step, in the order in which they ran."""
    files: dict[str, tuple[str | bytes, int, str]] = field(default_factory=dict)
    """Content, mode and owner."""

    def _answer(self, *keys: str) -> CommandResult:
        for piece, answer in self.answers.items():
            if any(piece in key for key in keys):
                if isinstance(answer, Exception):
                    raise answer
                return answer
        return CommandResult(0, "", "")

    async def read(self, script: str, *, timeout: float = 30) -> CommandResult:
        self.reads.append(script)
        return self._answer(script)

    async def run_step(self, step: str, script: str, *, timeout: float = 300) -> CommandResult:
        self.steps.pop(step, None)
        self.steps[step] = script
        answer = self._answer(step, script)
        if not answer.ok:
            raise CommandError(f"run step {step} on {self.hostname}", answer)
        return answer

    async def write_file(
        self, path: str, content: str | bytes, *, mode: int = 0o644, owner: str = "root", group: str = "root"
    ) -> None:
        self.files[path] = (content, mode, owner)

    async def deliver(self, digest: str) -> str:
        return f"/artifacts/{digest}"


def probed(checks: Iterable[str], *, failed: Iterable[str] = (), **found: str) -> CommandResult:
    """The answer of a machine to `gpuaas_sdk.probe`: nothing is left but what is given by the name of its check.

    The checks in `failed` end with an exit status of 1."""
    broken = set(failed)
    lines = [f"{MARK} {check} {int(check in broken)}\n{found.get(check, '')}\n" for check in checks]
    return CommandResult(0, "".join(lines), "")


def defined_again(package: ModuleType) -> list[str]:
    """The public classes and functions of an app that have the name of one of the SDK's: use that one instead."""
    names = set(dir(gpuaas_sdk))
    found = []
    for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
        if module.name.endswith("__main__"):
            continue
        for name, value in vars(import_module(module.name)).items():
            if name in names and inspect.getmodule(value) is sys.modules[module.name]:
                found.append(f"{module.name}.{name}")
    return sorted(found)


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next timer when nothing else is left to do: an hour of retries and
    leases takes as long as the code that runs in it, and always in the same order. For code that neither uses
    threads nor real connections. `asyncio.Runner(loop_factory=VirtualTimeLoop).run(main())`
    """

    def __init__(self) -> None:
        self._virtual_now = 0.0
        super().__init__(_JumpingSelector(self._jump))

    def time(self) -> float:
        return self._virtual_now

    def wall_clock(self) -> datetime:
        """The time that `gpuaas_sdk.clock.now` returns in this loop: deadlines jump along."""
        return _WALL_START + timedelta(seconds=self._virtual_now)

    def _jump(self, seconds: float | None) -> None:
        if seconds is None:
            raise RuntimeError("every task waits, and no timer will wake one")
        self._virtual_now += seconds


class _JumpingSelector(selectors.SelectSelector):
    def __init__(self, jump: Callable[[float | None], None]) -> None:
        super().__init__()
        self._jump = jump

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and (timeout is None or timeout > 0):
            self._jump(timeout)
        return ready
