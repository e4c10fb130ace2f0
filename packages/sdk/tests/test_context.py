"""The contexts of handlers: waits inside a step, members that never came to a step, looks at many machines, help."""

import asyncio
import pydoc
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import httpx
import pytest

from gpuaas_contract.access import AccessGrant, MachineAddress, MachineLeftOut
from gpuaas_contract.instances import Instance, Member
from gpuaas_sdk import (
    MachineUnreachableError,
    NotObservableError,
    Observation,
    ObserveContext,
    ObservedMachine,
    OperationCancelled,
    OperationContext,
    OperationFailed,
    PreflightContext,
    RetryLater,
    StepHandle,
    TransportError,
)
from gpuaas_sdk.errors import LeaseLostError
from gpuaas_sdk.machines.ssh import SshMachineAccess
from gpuaas_sdk.observations import yes
from gpuaas_sdk.testing import FakeMachine, ScriptedPlatform, VirtualTimeLoop

from .sdk_test_machines import claim
from .sdk_test_platform import NoMachines


def context(platform: ScriptedPlatform | None = None) -> OperationContext:
    client = (platform or ScriptedPlatform(httpx.Response(200))).client()
    return OperationContext(client, claim(7, "op_1"), NoMachines())


def in_virtual_time(work: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await work()

    asyncio.Runner(loop_factory=VirtualTimeLoop).run(run())


def test_a_wait_ends_with_its_condition_and_takes_no_answer_for_not_yet() -> None:
    answers: list[object] = [
        None,
        RetryLater(1.0, "does not listen"),
        MachineUnreachableError("no answer"),
        TransportError("cut"),
        "here",
    ]

    async def condition() -> str | None:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return cast("str | None", answer)

    async def work() -> None:
        began = asyncio.get_running_loop().time()
        assert await context().wait_for("it to come", condition, every=2.0) == "here"
        assert asyncio.get_running_loop().time() - began == 8.0

    in_virtual_time(work)


@pytest.mark.parametrize("error", [OperationFailed("no_room", "no room"), LeaseLostError("gone"), KeyError("x")])
async def test_every_other_error_ends_the_wait(error: Exception) -> None:
    async def condition() -> None:
        raise error

    with pytest.raises(type(error)):
        await context().wait_for("it to come", condition)


def test_a_wait_has_its_own_end_and_says_what_was_waited_for() -> None:
    async def condition() -> None:
        raise RetryLater(1.0, "it does not listen")

    async def work() -> None:
        with pytest.raises(OperationFailed, match="waited 10 s for the primary to answer: it does not listen") as ended:
            await context().wait_for("the primary to answer", condition, seconds=10)
        assert (ended.value.code, ended.value.retryable) == ("wait_timed_out", True)

    in_virtual_time(work)


def test_a_wait_is_called_off_at_once() -> None:
    async def condition() -> None:
        return None

    async def work() -> None:
        operation, loop = context(), asyncio.get_running_loop()
        loop.call_later(3.0, operation.request_cancel)
        with pytest.raises(OperationCancelled):
            await operation.wait_for("it to come", condition, every=3_600.0)
        assert loop.time() == 3.0
        with pytest.raises(OperationCancelled):
            await operation.wait_for("it to come", condition)

    in_virtual_time(work)


@pytest.mark.parametrize("wrong", [{"every": 0.0}, {"every": -1.0}, {"seconds": 0.0}])
async def test_a_wait_without_a_pause_or_without_time_is_refused(wrong: dict[str, float]) -> None:
    async def condition() -> bool:
        return True

    with pytest.raises(ValueError, match="cannot wait for it"):
        await context().wait_for("it", condition, **wrong)


def operation(member: str | None, *steps: str, replacement: str | None = None) -> dict[str, Any]:
    made = claim(1, "op_1", member).operation.model_dump(mode="json")
    named = [
        {"key": key, "title": key, "status": "running", "attempt": 1, "started_at": made["created_at"]} for key in steps
    ]
    return {**made, "replacement_member_id": replacement, "steps": named}


@pytest.mark.parametrize(
    ("operations", "before"),
    [
        ([], set()),
        ([operation("mem_1", "check")], {"mem_1"}),
        ([operation("mem_1", "check", "record"), operation("mem_2", "wait")], {"mem_2"}),
        ([operation("mem_1", "recording")], {"mem_1"}),
        ([operation("mem_1", "wait"), operation("mem_1", "record")], set()),
        ([operation("mem_1", "record", replacement="mem_2")], set()),
        ([operation("mem_1"), operation("mem_2"), operation(None, "record-worker-a")], {"mem_2"}),
    ],
)
async def test_a_member_never_came_to_a_step_that_was_never_announced(
    operations: list[dict[str, Any]], before: set[str]
) -> None:
    named = {"id": "mem_1", "instance_id": "ins_1", "component_key": "worker", "allocation_id": "alc_1"}
    times = {key: operation("mem_1")[key] for key in ("revision", "created_at", "updated_at", "correlation_id")}
    member = {**named, **times, "status": "ready"}

    def answer(request: httpx.Request) -> httpx.Response:
        items = operations if request.url.path == "/v1/operations" else [member]
        return httpx.Response(200, json={"items": items})

    assert await context(ScriptedPlatform(answer)).members_before("record") == before


class Machines:
    """Of which one is not there."""

    def machine(self, allocation_id: str) -> ObservedMachine:
        if allocation_id == "alc_0":
            raise MachineUnreachableError("alc_0 is not a machine that can be observed")
        return FakeMachine(allocation_id=allocation_id)


def observed(members: int) -> tuple[ObserveContext, list[Member]]:
    found = [Member.model_construct(id=f"mem_{n}", allocation_id=f"alc_{n}") for n in range(members)]  # type: ignore[call-arg]
    client = ScriptedPlatform(httpx.Response(200)).client()
    return ObserveContext(client, 1, cast(Any, Machines()), cast(Instance, None), found), found


def test_machines_are_observed_at_once_and_one_holds_up_no_other() -> None:
    at_work, most = 0, 0

    async def look(machine: ObservedMachine, member: Member) -> Observation:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(3_600 if member.id == "mem_1" else 1)
        at_work -= 1
        if member.id == "mem_2":
            raise MachineUnreachableError("no answer")
        return yes(machine.allocation_id)

    async def work() -> None:
        observe, members = observed(20)
        seen = await observe.observe_members(members, look, at_once=4, seconds=5)
        assert most == 4
        assert [id for id, each in seen.items() if not each.is_yes] == ["mem_0", "mem_1", "mem_2"]
        assert all(seen[id].is_unknown for id in ("mem_0", "mem_1", "mem_2"))
        assert "longer than 5 s" in seen["mem_1"].evidence
        assert asyncio.get_running_loop().time() < 15
        with pytest.raises(ValueError, match="at_once"):
            await observe.observe_members(members, look, at_once=0)

    in_virtual_time(work)


async def test_a_bug_in_a_look_is_raised_as_it_is() -> None:
    async def look(machine: ObservedMachine, member: Member) -> Observation:
        raise KeyError("x")

    observe, members = observed(3)
    with pytest.raises(KeyError):
        await observe.observe_members(members[1:], look)


@pytest.mark.parametrize("kind", [OperationContext, ObserveContext, PreflightContext, StepHandle])
def test_help_has_every_attribute_of_a_context(kind: type) -> None:
    if kind is OperationContext:
        made: object = context()
    elif kind is StepHandle:
        made = StepHandle(context(), "a", "A")
    elif kind is ObserveContext:
        made = observed(1)[0]
    else:
        made = PreflightContext(context(), cast(Any, None))
    said = pydoc.render_doc(kind, renderer=pydoc.plaintext)  # type: ignore[attr-defined]
    attributes = {name for name in vars(made) if not name.startswith("_")}
    assert attributes
    missing = [name for name in sorted(attributes) if f"{name}: " not in said]
    assert missing == []
    undocumented = [
        name
        for name, value in vars(kind).items()
        if isinstance(value, property) and not name.startswith("_") and not value.__doc__
    ]
    assert undocumented == []


class Granting:
    """A platform that grants access to the machines that there are at the moment."""

    def __init__(self, *machines: str) -> None:
        self.machines = [*machines]
        self.asked: list[bool] = []

    @property
    def operations(self) -> "Granting":
        return self

    async def access(self, operation_id: str, token: int, public_key: str, *, observer: bool = False) -> AccessGrant:
        self.asked.append(observer)
        addresses = [
            MachineAddress(allocation_id=id, hostname=id, address="192.0.2.1", host_principal=id)
            for id in self.machines
        ]
        return AccessGrant(
            id=f"acg_{len(self.asked)}",
            login="gpuaas-observer" if observer else "root",
            certificate="",
            host_authority="",
            machines=addresses if observer else addresses[:1],
            left_out=[MachineLeftOut(allocation_id="alc_lab", reason="lab is external")],
            expires_at=datetime.now(UTC) + timedelta(minutes=2),
        )


async def test_the_machines_of_all_members_can_be_looked_at_and_one_that_joined_later_is_found() -> None:
    platform = Granting("alc_1", "alc_2")
    machines = SshMachineAccess(cast(Any, platform), claim(7, "op_1"))
    await machines.prepare()
    operation = OperationContext(cast(Any, platform), claim(7, "op_1"), machines)
    with pytest.raises(MachineUnreachableError, match="alc_2 is not an active machine of this operation"):
        operation.machine("alc_2")
    looked = [await operation.observed_machine(id) for id in ("alc_1", "alc_2")]
    assert [machine.hostname for machine in looked] == ["alc_1", "alc_2"]
    assert not any(hasattr(machine, "run_step") for machine in looked)
    assert platform.asked == [False, True], "one grant for all of them"
    platform.machines.append("alc_3")
    assert (await operation.observed_machine("alc_3")).hostname == "alc_3"
    assert platform.asked == [False, True, True]
    with pytest.raises(NotObservableError, match="lab is external"):
        await operation.observed_machine("alc_lab")
    with pytest.raises(NotObservableError, match="alc_9 is not a machine of this instance"):
        await operation.observed_machine("alc_9")


async def test_where_there_are_no_observers_that_is_said() -> None:
    with pytest.raises(NotObservableError, match="cannot look at alc_1"):
        await context().observed_machine("alc_1")
