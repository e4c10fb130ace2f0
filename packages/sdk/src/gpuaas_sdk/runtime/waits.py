"""Waits inside a step, for a condition or for members: over with what they wait for, when called off, at their time."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Protocol, TypeVar

from gpuaas_contract.instances import Member, MemberStatus
from gpuaas_contract.operations import Operation
from gpuaas_sdk import clock
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.errors import ANSWERS_LATER
from gpuaas_sdk.machines.base import MachineUnreachableError
from gpuaas_sdk.runtime.errors import OperationFailed, RetryLater

Found = TypeVar("Found")
Statuses = MemberStatus | Collection[MemberStatus]
TIMED_OUT = "wait_timed_out"
MEMBER_FAILED = "member_failed"
NOT_YET = (RetryLater, MachineUnreachableError, *ANSWERS_LATER)
BEFORE_THE_DEADLINE = 1.0
"""Seconds by which a wait ends before its operation's deadline: in time to say what it waited for."""
MOST_NAMED = 5
ERROR_CHARACTERS = 500


async def wait_for(
    what: str,
    condition: Callable[[], Awaitable[Found | None]],
    *,
    every: float,
    seconds: float | None,
    operation: Operation,
    cancelled: asyncio.Event,
    check_cancelled: Callable[[], None],
) -> Found:
    if every <= 0 or (seconds is not None and seconds <= 0):
        raise ValueError(f"cannot wait for {what}: every and seconds are more than 0")
    loop = asyncio.get_running_loop()
    left = (operation.deadline - clock.now()).total_seconds() - BEFORE_THE_DEADLINE
    give_up = loop.time() + min(left, left if seconds is None else seconds)
    waited = f"waited {seconds:g} s" if seconds is not None and seconds <= left else "waited until the deadline"
    while True:
        check_cancelled()
        last = ""
        try:
            if (found := await condition()) is not None:
                return found
        except NOT_YET as error:
            # What is handed back begins anew with its first phase: here it is only asked again.
            last = f": {error}"
        if (remaining := give_up - loop.time()) <= 0:
            raise OperationFailed(TIMED_OUT, f"{waited} for {what}{last}", retryable=True)
        try:
            async with asyncio.timeout(min(every, remaining)):
                await cancelled.wait()
        except TimeoutError:
            continue


class WaitsForMembers(Protocol):
    """The part of an operation's context that a wait for members needs."""

    client: GpuaasClient
    operation: Operation

    async def members(self) -> list[Member]: ...

    async def has_failed(self, member: Member) -> bool: ...

    async def wait_for(
        self,
        what: str,
        condition: Callable[[], Awaitable[Found | None]],
        *,
        every: float = 1.0,
        seconds: float | None = None,
    ) -> Found: ...


class MemberWait:
    """One wait for members to be in one of some statuses."""

    def __init__(
        self,
        context: WaitsForMembers,
        member_ids: Sequence[str] | None,
        component_key: str | None,
        status: Statuses,
        failure_code: str,
        say: Callable[[str], Awaitable[None]],
    ) -> None:
        self._context = context
        self._ids = member_ids
        self._component_key = component_key
        self._statuses = {status} if isinstance(status, MemberStatus) else set(status)
        if not self._statuses:
            raise ValueError("cannot wait for members: name a status")
        self._failure_code = failure_code
        self._say = say
        self._said = ""

    async def run(self, *, every: float, seconds: float | None) -> list[Member]:
        try:
            return await self._context.wait_for(self._what, self._look, every=every, seconds=seconds)
        except OperationFailed as failure:
            if failure.code != TIMED_OUT or not self._said:
                raise
            raise OperationFailed(TIMED_OUT, f"{failure.detail}; {self._said}", retryable=True) from None

    @property
    def _what(self) -> str:
        if self._ids is not None:
            who = _listed(self._ids)
        else:
            who = f"every {self._component_key}" if self._component_key else "every other member"
        return f"{who} to be {self._wanted}"

    @property
    def _wanted(self) -> str:
        return " or ".join(sorted(self._statuses))

    async def _look(self) -> list[Member] | None:
        members = await self._read()
        there = [member for member in members if member.status in self._statuses]
        waiting = [member for member in members if member.status not in self._statuses]
        if not waiting:
            return members
        lost = [member for member in waiting if await self._is_lost(member)]
        if lost:
            raise self._failure(lost)
        own = self._context.operation.member_id
        if any(member.id == own for member in waiting) and self._ids is not None:
            raise ValueError(f"cannot wait for {own}: it is the member of this very operation")
        words = _listed(f"{member.component_key} {member.id} is {member.status}" for member in waiting)
        sentence = f"{len(there)} of {len(members)} {self._wanted}: {words}"
        if sentence != self._said:
            self._said = sentence
            await self._say(f"Waiting for {self._what}. {sentence}")
        return None

    async def _read(self) -> list[Member]:
        """Ask for a single member alone: every worker of a large deploy waits for one, while all are installed."""
        context = self._context
        if self._ids is not None and len(self._ids) == 1:
            member = await context.client.members.get(self._ids[0])
            self._require_known([member.id] if member.instance_id == context.operation.instance_id else [])
            return [member]
        members = await context.members()
        if self._ids is not None:
            self._require_known([member.id for member in members])
            return [member for member in members if member.id in self._ids]
        return [
            member
            for member in members
            if member.status != MemberStatus.REMOVED
            and member.id != context.operation.member_id
            and self._component_key in (None, member.component_key)
        ]

    def _require_known(self, known: Collection[str]) -> None:
        unknown = [member_id for member_id in self._ids or () if member_id not in known]
        if unknown:
            raise ValueError(f"cannot wait for {_listed(unknown)}: no member of {self._context.operation.instance_id}")

    async def _is_lost(self, member: Member) -> bool:
        return member.status == MemberStatus.REMOVED or await self._context.has_failed(member)

    def _failure(self, lost: Sequence[Member]) -> OperationFailed:
        if self._context.operation.kind == "deploy":
            advice = "a retry of the deploy tries that again"
        else:
            own = dict.fromkeys(m.last_operation_id for m in lost if m.status != MemberStatus.REMOVED)
            failed = [operation_id for operation_id in own if operation_id is not None]
            advice = f"retry {_listed(failed)} first" if failed else "request the operation again without it"
        detail = f"{len(lost)} did not become {self._wanted}: {_listed(map(describe_failure, lost), '; ')}. {advice}"
        return OperationFailed(self._failure_code, detail, retryable=True)


def describe_failure(member: Member) -> str:
    """Say why its own operation failed: whoever waits for it fails with these words, and not with "see there"."""
    reason = "it was removed" if member.status == MemberStatus.REMOVED else member.adapter_detail.get("error")
    return f"{member.component_key} {member.id}: {str(reason or 'no reason is known')[:ERROR_CHARACTERS]}"


def _listed(words: Iterable[str], between: str = ", ") -> str:
    all_of_them = list(words)
    more = len(all_of_them) - MOST_NAMED
    return between.join(all_of_them[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
