"""The agent's LXD client for code that is not async: each conversation has a client and an event loop of its own."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar

from gpuaas_agent.errors import AgentError
from gpuaas_agent.lxd import Lxd
from gpuaas_stack.errors import StackError

# A storage pool or an image is made before the answer comes, which takes a while on a busy machine.
ANSWER_SECONDS = 300
OPERATION_SECONDS = 1_800
"""To import an image on a machine that is busy takes minutes."""

Result = TypeVar("Result")
Arguments = ParamSpec("Arguments")


class HasSocket(Protocol):
    socket: Path


Owner = TypeVar("Owner", bound=HasSocket)


def talk(socket: Path, purpose: str, conversation: Callable[[Lxd], Awaitable[Result]]) -> Result:
    async def converse() -> Result:
        async with Lxd(socket, answer_seconds=ANSWER_SECONDS, operation_seconds=OPERATION_SECONDS) as lxd:
            return await conversation(lxd)

    try:
        return asyncio.run(converse())
    except AgentError as error:
        raise StackError(f"cannot {purpose}: {error}") from error


def conversation(
    purpose: str,
) -> Callable[
    [Callable[Concatenate[Owner, Lxd, Arguments], Coroutine[Any, Any, Result]]],
    Callable[Concatenate[Owner, Arguments], Result],
]:
    """Make an async method that talks to LXD a plain one. Its failure says that it "cannot `purpose`"."""

    def wrap(
        method: Callable[Concatenate[Owner, Lxd, Arguments], Coroutine[Any, Any, Result]],
    ) -> Callable[Concatenate[Owner, Arguments], Result]:
        @functools.wraps(method)
        def call(self: Owner, /, *arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
            return talk(self.socket, purpose, lambda lxd: method(self, lxd, *arguments, **named))

        return call

    return wrap
