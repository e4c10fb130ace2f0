"""Handlers under leases: every way in which an operation can end, and every way in which it must not."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from gpuaas_contract.identity import PrincipalKind
from gpuaas_contract.operations import EVIDENCE_BYTES
from gpuaas_contract.problems import Code
from gpuaas_sdk import OperationContext, OperationFailed, RetryLater
from gpuaas_sdk.correlation import current_correlation_id
from gpuaas_sdk.retry import RetryPolicy
from gpuaas_sdk.runtime import controller as controller_module
from gpuaas_sdk.runtime import queue as queue_module
from gpuaas_sdk.runtime.breaker import OPEN_SECONDS, OPENS_AFTER
from gpuaas_sdk.runtime.controller import Controller, default_holder
from gpuaas_sdk.runtime.errors import ControllerMisconfiguredError

from .sdk_test_platform import LEASE_SECONDS, MemoryPlatform, refusal


@pytest.fixture
def platform() -> MemoryPlatform:
    return MemoryPlatform()


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    quick = RetryPolicy(first_delay=0.01, longest_delay=0.05)
    monkeypatch.setattr(controller_module, "PLATFORM_AWAY", quick)
    monkeypatch.setattr(queue_module, "PLATFORM_AWAY", quick)
    monkeypatch.setattr(queue_module, "TRY_AGAIN", quick)


@asynccontextmanager
async def running(*controllers: Controller) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(controller.run()) for controller in controllers]
    try:
        yield
    finally:
        for controller in controllers:
            controller.stop()
        await asyncio.gather(*tasks)


async def settle() -> None:
    """Let happen all that needs no time: the loop's time is virtual and stands still meanwhile."""
    await asyncio.sleep(0.001)


async def test_a_handler_runs_its_steps_and_its_result_completes_the_operation(platform: MemoryPlatform) -> None:
    seen: list[Any] = []

    async def deploy(context: OperationContext) -> dict[str, Any]:
        async with context.step("install", "Install the packages") as step:
            seen.append((platform.log[-1], current_correlation_id(), context.fencing_token))
            step.message = "12 packages"
            step.evidence = {"packages": 12}
        return {"ran": True}

    operation_id = platform.request("deploy")
    async with running(platform.controller({"deploy": deploy}, holder="me")):
        operation = await platform.until(operation_id, "succeeded")
    assert seen == [("step op_1 install running", "cor_op_1", 1)]
    assert operation.result == {"ran": True}
    assert operation.steps[0].evidence == {"packages": 12}
    assert platform.log == [
        "claim op_1 me",
        "step op_1 install running",
        "step op_1 install succeeded: 12 packages",
        "complete op_1",
    ]


async def test_evidence_that_the_platform_would_refuse_is_left_out_and_the_step_is_reported(
    platform: MemoryPlatform,
) -> None:
    async def deploy(context: OperationContext) -> None:
        async with context.step("look", "Look") as step:
            step.evidence = {"found": "x" * EVIDENCE_BYTES}

    async with running(platform.controller({"deploy": deploy})):
        id = platform.request("deploy")
        await platform.until(id, "succeeded")
    (evidence,) = [step.evidence for step in platform.rows[id]["steps"]]
    assert list(evidence) == ["left_out"]


async def test_a_new_operation_is_taken_because_the_feed_says_so(platform: MemoryPlatform) -> None:
    async def deploy(context: OperationContext) -> None:
        pass

    async with running(platform.controller({"deploy": deploy}, resync_seconds=60)):
        await settle()
        assert (platform.lists > 0, len(platform.feeds)) == (True, 1), "it has looked once and follows the feed"
        await platform.until(platform.request("deploy"), "succeeded", seconds=30)


async def test_an_operation_of_the_app_is_claimed_without_another_look(platform: MemoryPlatform) -> None:
    async def deploy(context: OperationContext) -> None:
        pass

    controller = platform.controller({"deploy": deploy}, resync_seconds=60)
    async with running(controller):
        await settle()
        for number in range(5):
            looks = platform.lists
            await platform.until(platform.request("deploy", instance=f"ins_{number // 2}"), "succeeded")
            assert platform.lists == looks
            await settle()


async def test_what_has_another_operator_is_asked_for_once_and_left_alone(platform: MemoryPlatform) -> None:
    async def deploy(context: OperationContext) -> None:
        pass

    platform.of_others = {"ins_2"}
    async with running(platform.controller({"deploy": deploy})):
        await settle()
        first = platform.request("deploy", member="mem_2", instance="ins_2")
        await platform.until(platform.request("deploy"), "succeeded")
        second = platform.request("deploy", member="mem_3", instance="ins_2")
        for number in range(3):
            await platform.until(platform.request("deploy", instance=f"ins_{number + 5}"), "succeeded")
            await settle()
        assert [line for line in platform.log if line.startswith("refused")] == [f"refused {first}"]
        # The owner hands the instance over to this one.
        platform.of_others.clear()
        for id in (first, second):
            await platform.until(id, "succeeded")


@pytest.mark.parametrize(("app_slug", "looks"), [("another", 0), (None, 1)])
async def test_the_controller_looks_only_after_changes_that_may_be_of_its_app(
    platform: MemoryPlatform, app_slug: str | None, looks: int
) -> None:
    """A platform of before does not say whose a change is."""
    async with running(platform.controller({}, resync_seconds=60)):
        await settle()
        before = platform.lists
        platform.tell("operation", "op_9", "requested", "ins_9", app_slug)
        await settle()
        assert platform.lists - before == looks


async def test_one_that_arrives_while_its_member_is_busy_waits_for_its_turn(platform: MemoryPlatform) -> None:
    busy, may_end = asyncio.Event(), asyncio.Event()

    async def drain(context: OperationContext) -> None:
        busy.set()
        await may_end.wait()

    async def deploy(context: OperationContext) -> None:
        pass

    async with running(platform.controller({"deploy": deploy, "drain": drain}, resync_seconds=60)):
        await platform.until(platform.request("deploy"), "succeeded")
        first = platform.request("drain")
        await asyncio.wait_for(busy.wait(), 60)
        second = platform.request("deploy")
        looks = platform.lists
        async with asyncio.timeout(60):
            while platform.lists == looks:  # noqa: ASYNC110 - a test looks from outside
                await asyncio.sleep(0.005)
        assert platform.rows[second]["state"] == "pending"
        may_end.set()
        await platform.until(second, "succeeded")
    assert platform.log.index(f"complete {first}") < platform.log.index(f"claim {second} {default_holder()}")


async def test_retry_later_hands_the_lease_back_and_comes_again(platform: MemoryPlatform) -> None:
    attempts: list[int] = []

    async def deploy(context: OperationContext) -> None:
        attempts.append(context.operation.attempt)
        if len(attempts) < 3:
            async with context.step("wait", "Wait for the other"):
                raise RetryLater(0.02, "the other is not there yet")

    async with running(platform.controller({"deploy": deploy})):
        await platform.until(platform.request("deploy"), "succeeded")
    assert attempts == [1, 2, 3]
    assert platform.log.count("yield op_1") == 2
    assert "step op_1 wait failed: will be tried again: the other is not there yet" in platform.log


async def test_a_machine_that_does_not_answer_is_not_a_failure(platform: MemoryPlatform) -> None:
    attempts: list[int] = []

    async def deploy(context: OperationContext) -> None:
        attempts.append(1)
        if len(attempts) < 3:
            context.machine("alc_1")

    async with running(platform.controller({"deploy": deploy})):
        await platform.until(platform.request("deploy"), "succeeded")
    assert len(attempts) == 3


@pytest.mark.parametrize(
    "code", [Code.IDEMPOTENCY_IN_FLIGHT, Code.RATE_LIMITED, Code.UNAVAILABLE, Code.NODE_OFFLINE, Code.INTERNAL]
)
async def test_a_platform_that_answers_later_is_not_a_failure(platform: MemoryPlatform, code: Code) -> None:
    """After all the attempts of one request have failed, with whichever of these the last one ended."""
    attempts: list[int] = []

    async def deploy(context: OperationContext) -> None:
        async with context.step("ask", "Ask the platform"):
            attempts.append(1)
            if len(attempts) < 3:
                raise refusal(code)

    async with running(platform.controller({"deploy": deploy})):
        await platform.until(platform.request("deploy"), "succeeded")
    assert len(attempts) == 3
    assert platform.log.count(f"step op_1 ask failed: will be tried again: {refusal(code)}") == 2


async def test_it_is_one_once_the_deadline_is_over(platform: MemoryPlatform) -> None:
    async def deploy(context: OperationContext) -> None:
        context.machine("alc_1")

    async with running(platform.controller({"deploy": deploy})):
        operation = await platform.until(platform.request("deploy", seconds=0.3), "failed")
    assert operation.error is not None
    assert (operation.error.code, operation.error.retryable) == ("deadline_exceeded", True)


async def test_a_handler_that_hangs_is_ended_at_the_deadline(platform: MemoryPlatform) -> None:
    async def deploy(context: OperationContext) -> None:
        await asyncio.sleep(60)

    async with running(platform.controller({"deploy": deploy})):
        operation = await platform.until(platform.request("deploy", seconds=0.3), "failed")
    assert operation.error is not None
    assert operation.error.code == "deadline_exceeded"


async def test_a_failure_keeps_its_words(platform: MemoryPlatform) -> None:
    async def remove(context: OperationContext) -> None:
        async with context.step("probe", "Look for leftovers"):
            raise OperationFailed(
                "left_behind", "port 80 is taken", retryable=True, member_usable=True, result={"a": 1}
            )

    async with running(platform.controller({"remove": remove})):
        operation = await platform.until(platform.request("remove"), "failed")
    assert operation.error is not None
    assert operation.error.model_dump() == {
        "code": "left_behind",
        "detail": "port 80 is taken",
        "retryable": True,
        "member_usable": True,
    }
    assert operation.result == {"a": 1}
    assert "step op_1 probe failed: port 80 is taken" in platform.log


async def test_a_bug_says_that_it_is_one_and_nothing_secret(platform: MemoryPlatform) -> None:
    async def deploy(context: OperationContext) -> None:
        async with context.step("s", "S"):
            raise KeyError("hunter2")

    async with running(platform.controller({"deploy": deploy})):
        operation = await platform.until(platform.request("deploy"), "failed")
    assert operation.error is not None
    assert operation.error.code == "controller_bug"
    assert "KeyError" in operation.error.detail
    assert "hunter2" not in f"{operation.error.detail} {platform.log}"


async def test_a_kind_without_a_handler_is_not_ignored(platform: MemoryPlatform) -> None:
    async with running(platform.controller({})):
        operation = await platform.until(platform.request("resize"), "failed")
    assert operation.error is not None
    assert operation.error.code == "kind_not_handled"


async def test_a_pre_empted_handler_is_stopped_at_once_and_writes_nothing_more(platform: MemoryPlatform) -> None:
    started, stopped = asyncio.Event(), asyncio.Event()

    async def deploy(context: OperationContext) -> None:
        async with context.step("long", "Long"):
            started.set()
            try:
                await asyncio.sleep(60)
            finally:
                stopped.set()

    async def decommission(context: OperationContext) -> None:
        assert stopped.is_set()

    async with running(platform.controller({"deploy": deploy, "decommission": decommission})):
        first = platform.request("deploy")
        await started.wait()
        platform.preempt(first)
        second = platform.request("decommission", member=None)
        async with asyncio.timeout(0.15):
            await stopped.wait()
        await platform.until(second, "succeeded")
    assert platform.log == [
        f"claim op_1 {default_holder()}",
        "step op_1 long running",
        f"claim op_2 {default_holder()}",
        "complete op_2",
    ]


async def test_a_handler_is_stopped_when_the_lease_can_no_longer_be_ours(platform: MemoryPlatform) -> None:
    stopped = asyncio.Event()

    async def deploy(context: OperationContext) -> None:
        platform.away = True
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    async with running(platform.controller({"deploy": deploy})):
        platform.request("deploy")
        async with asyncio.timeout(LEASE_SECONDS + 0.5):
            await stopped.wait()
        platform.away = False


async def test_a_lease_is_kept_for_as_long_as_the_handler_works(platform: MemoryPlatform) -> None:
    async def deploy(context: OperationContext) -> None:
        await asyncio.sleep(LEASE_SECONDS * 2.5)

    other = platform.controller({"deploy": deploy}, holder="b")
    async with running(platform.controller({"deploy": deploy}, holder="a"), other):
        await platform.until(platform.request("deploy"), "succeeded")
    assert len([line for line in platform.log if line.startswith("claim")]) == 1


async def test_the_outcome_is_reported_when_the_platform_is_back(platform: MemoryPlatform) -> None:
    async def deploy(context: OperationContext) -> None:
        platform.away = True
        asyncio.get_running_loop().call_later(LEASE_SECONDS / 2, lambda: setattr(platform, "away", False))

    async with running(platform.controller({"deploy": deploy})):
        operation = await platform.until(platform.request("deploy"), "succeeded")
    assert operation.attempt == 1


async def test_restarts_of_the_platform_are_not_held_against_the_member(platform: MemoryPlatform) -> None:
    attempts = 0

    async def deploy(context: OperationContext) -> None:
        nonlocal attempts
        attempts += 1
        if attempts <= 3 * OPENS_AFTER:
            platform.away = True
            asyncio.get_running_loop().call_later(LEASE_SECONDS / 4, lambda: setattr(platform, "away", False))
        async with context.step("install", "Install the packages"):
            pass

    async with running(platform.controller({"deploy": deploy})):
        # Less than a breaker is open for, even once.
        await platform.until(platform.request("deploy"), "succeeded", seconds=OPEN_SECONDS)
    assert attempts == 3 * OPENS_AFTER + 1


async def test_a_controller_starts_before_the_platform_does(platform: MemoryPlatform) -> None:
    async def deploy(context: OperationContext) -> None:
        pass

    platform.away = True
    async with running(platform.controller({"deploy": deploy})):
        operation_id = platform.request("deploy")
        async with asyncio.timeout(60):
            while platform.turned_away < 3:
                await settle()
        assert platform.log == []
        platform.away = False
        await platform.until(operation_id, "succeeded")


async def test_shutting_down_hands_the_lease_back_and_a_successor_goes_on(platform: MemoryPlatform) -> None:
    started = asyncio.Event()

    async def hang(context: OperationContext) -> None:
        started.set()
        await asyncio.sleep(60)

    async def finish(context: OperationContext) -> None:
        pass

    operation_id = platform.request("deploy")
    async with running(platform.controller({"deploy": hang}, holder="a")):
        await started.wait()
    assert platform.log == ["claim op_1 a", "yield op_1"]
    async with running(platform.controller({"deploy": finish}, holder="b")):
        await platform.until(operation_id, "succeeded")


async def test_a_successor_takes_over_when_the_lease_of_a_dead_controller_ran_out(platform: MemoryPlatform) -> None:
    async def deploy(context: OperationContext) -> None:
        pass

    operation_id = platform.request("deploy")
    await platform.claim(operation_id, "dead")
    async with running(platform.controller({"deploy": deploy}, holder="b")):
        operation = await platform.until(operation_id, "succeeded")
    assert operation.attempt == 2


async def test_members_run_in_parallel_and_one_member_in_order(platform: MemoryPlatform) -> None:
    order: list[str] = []

    async def work(context: OperationContext) -> None:
        order.append(f"start {context.operation.id}")
        await asyncio.sleep(0.1)
        order.append(f"end {context.operation.id}")

    first, second = platform.request("add"), platform.request("drain")
    other = platform.request("add", member="mem_2")
    async with running(platform.controller({"add": work, "drain": work})):
        for operation_id in (first, second, other):
            await platform.until(operation_id, "succeeded")
    assert order.index(f"end {first}") < order.index(f"start {second}")
    assert order.index(f"start {other}") < order.index(f"end {first}")


async def test_two_controllers_share_the_work_without_doing_it_twice(platform: MemoryPlatform) -> None:
    runs: list[str] = []

    async def add(context: OperationContext) -> None:
        await asyncio.sleep(0.01)
        runs.append(context.operation.id)

    ids = [platform.request("add", member=f"mem_{n}") for n in range(50)]
    async with running(*(platform.controller({"add": add}, holder=name) for name in "ab")):
        for operation_id in ids:
            await platform.until(operation_id, "succeeded")
    assert sorted(runs) == sorted(ids)


@pytest.mark.parametrize(
    ("kind", "app_slug"), [(PrincipalKind.SERVICE_ACCOUNT, None), (PrincipalKind.USER, None), (PrincipalKind.USER, "x")]
)
async def test_an_account_that_cannot_work_is_said_at_once(
    platform: MemoryPlatform, kind: PrincipalKind, app_slug: str | None
) -> None:
    platform.kind, platform.app_slug = kind, app_slug
    with pytest.raises(ControllerMisconfiguredError, match="not a service account that is bound to an app"):
        await platform.controller({}).run()


@pytest.mark.parametrize("code", [Code.UNAUTHENTICATED, Code.FORBIDDEN, Code.INVALID_CREDENTIALS])
async def test_a_controller_without_permission_says_so_and_works_when_it_has_it(
    platform: MemoryPlatform, caplog: pytest.LogCaptureFixture, code: Code
) -> None:
    begun, ended = asyncio.Event(), asyncio.Event()

    async def deploy(context: OperationContext) -> None:
        begun.set()
        await ended.wait()

    async def said(words: str) -> None:
        async with asyncio.timeout(60):
            while words not in caplog.text:  # noqa: ASYNC110 - the log has no event
                await asyncio.sleep(0.005)

    platform.refuses = code
    first = platform.request("deploy")
    async with running(platform.controller({"deploy": deploy})):
        await said(f"cannot start yet: {code}")
        assert platform.log == []
        platform.refuses = None
        await begun.wait()
        # It is taken away in the middle: nothing is reported as done, and nothing is done twice at once.
        platform.refuses = code
        await said(f"cannot renew the lease of {first} yet: {code}")
        platform.refuses = None
        ended.set()
        await platform.until(first, "succeeded", seconds=60)


async def test_what_is_called_off_stops_between_two_steps(platform: MemoryPlatform) -> None:
    begun = asyncio.Event()
    go_on = asyncio.Event()

    async def drain(context: OperationContext) -> None:
        async with context.step("first", "First"):
            begun.set()
            await go_on.wait()
        async with context.step("second", "Second"):
            raise AssertionError("a step began after the operation was called off")

    async with running(platform.controller({"drain": drain})):
        id = platform.request("drain")
        await begun.wait()
        platform.cancel(id)
        go_on.set()
        await platform.until(id, "cancelled")
    assert "step op_1 first succeeded" in platform.log
    assert not [line for line in platform.log if " second " in line]
    assert platform.log[-1] == "cancelled op_1"


async def test_a_heart_beat_tells_a_handler_that_works_long(platform: MemoryPlatform) -> None:
    begun = asyncio.Event()

    async def drain(context: OperationContext) -> None:
        async with context.step("wait", "Wait for jobs"):
            begun.set()
            while True:
                context.check_cancelled()
                await asyncio.sleep(0.01)

    async with running(platform.controller({"drain": drain})):
        id = platform.request("drain")
        await begun.wait()
        platform.cancel(id)
        await platform.until(id, "cancelled")
    assert any(line.startswith("step op_1 wait failed") for line in platform.log)
