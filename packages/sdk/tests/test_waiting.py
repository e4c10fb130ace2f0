"""Members of a deploy wait for one another, but not for one that nobody brings up any more."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import httpx
import pytest

from gpuaas_contract.instances import Member, MemberStatus
from gpuaas_contract.operations import Claim, Lease, Operation, OperationState, WorkAcknowledged
from gpuaas_sdk import OperationCancelled, OperationContext, OperationFailed
from gpuaas_sdk.runtime.context import LOOKS_FOR_EACH_END
from gpuaas_sdk.testing import ScriptedPlatform, VirtualTimeLoop, problem

from .sdk_test_platform import NoMachines

NOW = datetime(2030, 1, 1, tzinfo=UTC)
OWNED = {"revision": 1, "created_at": NOW, "updated_at": NOW, "correlation_id": "cor_1"}


def operation(state: OperationState) -> Operation:
    named = {"id": "op_1", "project_id": "prj_1", "app_slug": "echo", "kind": "deploy", "requested_by": "usr_1"}
    return Operation.model_validate({**OWNED, **named, "input": {}, "state": state, "attempt": 1, "deadline": NOW})


def member(status: MemberStatus, last: str | None = "op_1") -> Member:
    named = {"id": "mem_1", "instance_id": "ins_1", "component_key": "controller", "allocation_id": "alc_1"}
    return Member.model_validate({**OWNED, **named, "status": status, "last_operation_id": last})


@pytest.mark.parametrize(
    ("status", "state", "failed"),
    [
        (MemberStatus.CONFIGURING, OperationState.RUNNING, False),
        (MemberStatus.CONFIGURING, OperationState.FAILED, True),
        (MemberStatus.PENDING, OperationState.CANCELLED, True),
        (MemberStatus.CONFIGURING, OperationState.SUCCEEDED, False),
        (MemberStatus.FAILED, OperationState.FAILED, True),
        (MemberStatus.FAILED, OperationState.PENDING, False),
        (MemberStatus.READY, OperationState.FAILED, False),
    ],
)
async def test_a_member_has_failed_when_nobody_brings_it_up_any_more(
    status: MemberStatus, state: OperationState, failed: bool
) -> None:
    """While its retry is not claimed yet, it still shows the failure before it."""
    platform = ScriptedPlatform(httpx.Response(200, content=operation(state).model_dump_json()))
    claim = Claim(operation=operation(OperationState.RUNNING), fencing_token=1, lease_seconds=15)
    context = OperationContext(platform.client(), claim, NoMachines())
    looks = [await context.has_failed(member(status)) for _ in range(LOOKS_FOR_EACH_END)]
    assert any(looks) is failed


async def test_a_member_that_failed_before_any_operation_has_failed() -> None:
    claim = Claim(operation=operation(OperationState.RUNNING), fencing_token=1, lease_seconds=15)
    context = OperationContext(ScriptedPlatform().client(), claim, NoMachines())
    assert await context.has_failed(member(MemberStatus.FAILED, last=None))


async def test_what_goes_on_is_asked_for_now_and_then_only() -> None:
    platform = ScriptedPlatform(httpx.Response(200, content=operation(OperationState.RUNNING).model_dump_json()))
    claim = Claim(operation=operation(OperationState.RUNNING), fencing_token=1, lease_seconds=15)
    context = OperationContext(platform.client(), claim, NoMachines())
    for _ in range(3 * LOOKS_FOR_EACH_END):
        assert not await context.has_failed(member(MemberStatus.CONFIGURING))
    assert len(platform.requests) == 3


class Members:
    """A platform with members whose statuses change at given seconds, and which keeps what steps say."""

    def __init__(self, **statuses: list[tuple[float, str]]) -> None:
        self.statuses = statuses
        self.others = {"component_key": "worker", "adapter_detail": {"error": "the disk is full"}}
        self.last_state = OperationState.FAILED
        self.said: list[str] = []
        self.asked: list[str] = []
        self.operation = operation(OperationState.RUNNING).model_copy(
            update={"instance_id": "ins_1", "kind": "add", "member_id": "mem_9", "deadline": NOW + timedelta(hours=1)}
        )

    def __call__(self, request: httpx.Request) -> httpx.Response:
        path = request.url.path.removeprefix("/v1")
        self.asked.append(path)
        if path == "/app-instances/ins_1":
            versions = {"app": "1.0", "catalogue": "1.0", "expected_runtime": "1"}
            named = {"id": "ins_1", "project_id": "prj_1", "app_slug": "echo", "app_version_id": "apv_1", "name": "a"}
            body: Any = {**named, "inputs": {}, "placement_intent": [], "versions": versions}
            return self._answer({**body, "status": "deploying", "desired_state": "running", "generation": 1})
        if path.startswith("/apps/echo/versions/"):
            component = {"title": "C", "min": 1, "max": 1}
            manifest = {
                "schema": "gpuaas.app/v1",
                "slug": "echo",
                "version": "1.0.0",
                "title": "Echo",
                "operations": [{"kind": "deploy", "title": "Deploy"}],
                "runtime": {"name": "echo", "version": "1"},
                "components": [{**component, "key": "controller", "primary": True}, {**component, "key": "worker"}],
            }
            return self._answer(
                {"id": "apv_1", "app_slug": "echo", "version": "1.0.0", "status": "published", "manifest": manifest}
            )
        if path == "/app-instances/ins_1/members":
            return httpx.Response(200, json={"items": [self._member(id) for id in self.statuses]})
        if path.startswith("/members/"):
            member_id = path.rpartition("/")[2]
            found = member_id in self.statuses
            return httpx.Response(200, json=self._member(member_id)) if found else problem("not_found", 404)
        if path.endswith("/steps"):
            body = json.loads(request.content)
            self.said.append(f"{body['key']} {body['status']}: {body['message']}")
            lease = Lease(holder="demo", expires_at=self.operation.deadline)
            words = self.operation.model_dump(include={"id", "revision", "state", "cancel_requested"})
            return httpx.Response(200, content=WorkAcknowledged(lease=lease, **words).model_dump_json())
        return httpx.Response(200, content=operation(self.last_state).model_dump_json())

    def _answer(self, body: dict[str, Any]) -> httpx.Response:
        return httpx.Response(200, json={**body, **json.loads(json.dumps(OWNED, default=str))})

    def _member(self, id: str) -> dict[str, Any]:
        now = asyncio.get_running_loop().time()
        status = [status for at, status in self.statuses[id] if at <= now][-1]
        made = member(MemberStatus(status)).model_dump(mode="json")
        others = {**self.others, "component_key": "controller"} if id == "mem_1" else self.others
        return {**made, **others, "id": id, "instance_id": "ins_1"}

    def context(self) -> OperationContext:
        claim = Claim(operation=self.operation, fencing_token=1, lease_seconds=15)
        return OperationContext(ScriptedPlatform(self).client(), claim, NoMachines())


def in_virtual_time(work: Callable[[], Awaitable[None]]) -> None:
    async def run() -> None:
        await work()

    asyncio.Runner(loop_factory=VirtualTimeLoop).run(run())


COMING = [(0.0, "configuring")]


def test_a_wait_for_named_members_ends_when_all_are_there_and_its_step_says_who_is_missing() -> None:
    platform = Members(mem_1=[*COMING, (5.0, "ready")], mem_2=[*COMING, (3.0, "ready")], mem_3=COMING)

    async def work() -> None:
        context = platform.context()
        async with context.step("gather", "Gather"):
            members = await context.wait_for_members(["mem_1", "mem_2", "mem_1"])
        assert [each.id for each in members] == ["mem_1", "mem_2"]
        assert asyncio.get_running_loop().time() == 5.0

    in_virtual_time(work)
    waiting = "gather running: Waiting for mem_1, mem_2 to be ready."
    assert platform.said == [
        "gather running: ",
        f"{waiting} 0 of 2 ready: controller mem_1 is configuring, worker mem_2 is configuring",
        f"{waiting} 1 of 2 ready: controller mem_1 is configuring",
        "gather succeeded: ",
    ]


def test_a_wait_for_the_primary_asks_for_that_member_alone_in_a_step_of_its_own() -> None:
    platform = Members(mem_1=[*COMING, (3.0, "ready")], mem_2=COMING)

    async def work() -> None:
        primary = await platform.context().wait_for_primary()
        assert (primary.id, primary.component_key, primary.status) == ("mem_1", "controller", MemberStatus.READY)

    in_virtual_time(work)
    assert platform.said[0] == "wait-for-primary running: "
    assert platform.said[-1] == "wait-for-primary succeeded: "
    assert platform.asked.count("/members/mem_1") == 4
    assert platform.asked.count("/app-instances/ins_1/members") == 1


def test_a_wait_for_all_follows_who_joins_and_who_leaves_but_not_the_operations_own_member() -> None:
    platform = Members(
        mem_1=[(0.0, "ready")],
        mem_2=[*COMING, (2.0, "removed")],
        mem_3=[(0.0, "removed"), (1.0, "pending"), (4.0, "drained")],
        mem_9=COMING,
    )

    async def work() -> None:
        wanted = {MemberStatus.READY, MemberStatus.DRAINED}
        members = await platform.context().wait_for_members(component_key="worker", status=wanted)
        assert [each.id for each in members] == ["mem_3"]
        assert asyncio.get_running_loop().time() == 4.0
        assert await platform.context().wait_for_members([]) == []

    in_virtual_time(work)


@pytest.mark.parametrize(
    ("kind", "status", "sentence"),
    [
        ("add", "failed", r"1 did not become ready: controller mem_1: the disk is full. retry op_1 first"),
        ("deploy", "failed", "the disk is full. a retry of the deploy tries that again"),
        ("add", "removed", "controller mem_1: it was removed. request the operation again without it"),
    ],
)
def test_a_wait_for_one_that_nobody_brings_up_fails_with_its_words(kind: str, status: str, sentence: str) -> None:
    platform = Members(mem_1=[*COMING, (2.0, status)])
    platform.operation = platform.operation.model_copy(update={"kind": kind})

    async def work() -> None:
        with pytest.raises(OperationFailed, match=sentence) as ended:
            await platform.context().wait_for_members(["mem_1"], failure_code="controller_failed")
        assert (ended.value.code, ended.value.retryable) == ("controller_failed", True)
        assert asyncio.get_running_loop().time() == 2.0

    in_virtual_time(work)
    assert platform.said[-1].startswith("wait-for-members failed: 1 did not become ready")


def test_a_wait_for_members_ends_at_its_time_or_just_before_the_deadline_and_says_who_is_missing() -> None:
    platform = Members(mem_1=COMING)
    platform.last_state = OperationState.RUNNING

    async def work() -> None:
        loop = asyncio.get_running_loop()
        missing = "for mem_1 to be ready; 0 of 1 ready: controller mem_1 is configuring"
        with pytest.raises(OperationFailed, match=f"waited 30 s {missing}") as ended:
            await platform.context().wait_for_members(["mem_1"], seconds=30)
        assert (ended.value.code, ended.value.retryable) == ("wait_timed_out", True)
        assert loop.time() == 30.0
        with pytest.raises(OperationFailed, match=f"waited until the deadline {missing}"):
            await platform.context().wait_for_members(["mem_1"], every=7.0)
        assert loop.time() == 3_599.0
        # A time of its own beyond the deadline does not help.
        with pytest.raises(OperationFailed, match="waited until the deadline"):
            await platform.context().wait_for_members(["mem_1"], seconds=7_200)

    in_virtual_time(work)


def test_a_wait_for_members_is_called_off_at_once() -> None:
    platform = Members(mem_1=COMING)
    platform.last_state = OperationState.RUNNING

    async def work() -> None:
        context, loop = platform.context(), asyncio.get_running_loop()
        loop.call_later(3.5, context.request_cancel)
        with pytest.raises(OperationCancelled):
            await context.wait_for_members(["mem_1"], every=600.0)
        assert loop.time() == 3.5

    in_virtual_time(work)


@pytest.mark.parametrize(
    ("ids", "status", "sentence"),
    [
        (["mem_1", "mem_7"], MemberStatus.READY, "cannot wait for mem_7: no member of ins_1"),
        (["mem_9"], MemberStatus.READY, "cannot wait for mem_9: it is the member of this very operation"),
        (["mem_1"], [], "name a status"),
    ],
)
def test_a_wait_that_cannot_end_is_refused(ids: list[str], status: Any, sentence: str) -> None:
    async def work() -> None:
        with pytest.raises(ValueError, match=sentence):
            await Members(mem_1=COMING, mem_9=COMING).context().wait_for_members(ids, status=status)

    in_virtual_time(work)
