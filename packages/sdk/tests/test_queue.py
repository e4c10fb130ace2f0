"""The queue alone, in virtual time: once, after its pause, in its order, and in turns."""

import asyncio
import inspect
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from gpuaas_contract.operations import Operation, OperationState
from gpuaas_sdk import RetryLater, clock
from gpuaas_sdk.runtime.breaker import OPEN_SECONDS, OPENS_AFTER
from gpuaas_sdk.runtime.errors import PlatformAway
from gpuaas_sdk.runtime.queue import PLATFORM_AWAY, TRY_AGAIN, WorkItem, WorkQueue
from gpuaas_sdk.testing import VirtualTimeLoop


def virtual(test: Callable[..., Any]) -> Callable[..., None]:
    """Run it in a loop whose time jumps."""

    def run(**fixtures: Any) -> None:
        with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
            runner.run(test(**fixtures))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    run.__signature__ = inspect.signature(test)  # type: ignore[attr-defined]
    run.pytestmark = getattr(test, "pytestmark", [])  # type: ignore[attr-defined]
    return run


def operation(number: int, member: str | None = "mem_1", instance: str = "ins_1", seconds: float = 3_600) -> Operation:
    now = clock.now()
    return Operation(
        id=f"op_{number:03}",
        revision=1,
        created_at=now,
        updated_at=now,
        instance_id=instance,
        member_id=member,
        project_id="prj_1",
        app_slug="demo",
        kind="add",
        input={},
        state=OperationState.PENDING,
        attempt=0,
        deadline=now + timedelta(seconds=seconds),
        requested_by="usr_1",
        correlation_id="cor_1",
    )


def ids(items: list[WorkItem]) -> list[str]:
    return [item.operation_id for item in items]


def now() -> float:
    return asyncio.get_running_loop().time()


@virtual
async def test_an_operation_starts_once_however_often_it_is_named() -> None:
    queue, one = WorkQueue(), operation(1)
    assert ids(queue.replace([one, one]).start) == ["op_001"]
    assert queue.replace([one]).start == []
    assert queue.add(one.id, one.instance_id, "cor_1") is None
    assert (queue.metrics.added, queue.metrics.started, queue.metrics.running) == (1, 1, 1)


@virtual
async def test_what_can_no_longer_be_claimed_is_forgotten() -> None:
    queue = WorkQueue()
    (first,) = queue.replace([operation(1), operation(2)]).start
    assert queue.metrics.blocked == 1
    queue.replace([])
    assert (queue.metrics.blocked, queue.metrics.running) == (0, 1), "what runs is not"
    queue.retry(first, RetryLater(5, "not yet"))
    queue.replace([])
    assert queue.metrics.delayed == 0


@virtual
async def test_one_object_runs_in_order_and_its_neighbours_beside_it() -> None:
    queue = WorkQueue()
    wanted = [operation(3), operation(1), operation(2, member="mem_2")]
    due = queue.replace(wanted)
    assert ids(due.start) == ["op_001", "op_002"]
    assert ids(due.doubtful) == ["op_001"], "it may have been pre-empted, since the platform offers the next one"
    queue.done(due.start[0])
    assert ids(queue.replace([wanted[0], wanted[2]]).start) == ["op_003"]


@pytest.mark.parametrize(("running", "next"), [(None, "mem_1"), ("mem_1", None)])
@virtual
async def test_a_whole_instance_and_its_members_exclude_each_other(running: str | None, next: str | None) -> None:
    queue = WorkQueue()
    (first,) = queue.replace([operation(1, member=running)]).start
    due = queue.replace([operation(1, member=running), operation(2, member=next)])
    assert (due.start, due.doubtful) == ([], [first])
    assert ids(queue.replace([operation(3, member=next, instance="ins_2")]).start) == ["op_003"]


@virtual
async def test_what_comes_back_waits_for_its_pause_and_is_due_then() -> None:
    queue, one = WorkQueue(), operation(1)
    (item,) = queue.replace([one]).start
    queue.retry(item, RetryLater(20, "not yet"))
    await queue.wait(60)
    assert now() == 0, "what ended may have made room"
    assert queue.replace([one]).start == []
    await queue.wait(60)
    assert now() == pytest.approx(20)
    assert queue.replace([one]).start == [item]


@virtual
async def test_pauses_grow_and_a_broken_target_is_left_alone_for_a_while() -> None:
    queue, one = WorkQueue(), operation(1)
    pauses = []
    for _ in range(OPENS_AFTER):
        (item,) = queue.replace([one]).start
        queue.retry(item, RetryLater(None, "no answer"))
        queue.replace([one])
        pauses.append(queue.seconds_until_due())
        await asyncio.sleep(pauses[-1])
    for number, pause in enumerate(pauses[:-1]):
        longest = min(TRY_AGAIN.first_delay * 2**number, TRY_AGAIN.longest_delay)
        assert longest * (1 - TRY_AGAIN.jitter) * 0.99 < pause < longest * 1.1
    assert pauses[-1] == pytest.approx(OPEN_SECONDS)


@virtual
async def test_a_new_operation_of_a_broken_target_waits_too_but_not_beyond_its_deadline() -> None:
    queue = WorkQueue()
    for number in range(OPENS_AFTER):
        (item,) = queue.replace([operation(number)]).start
        queue.retry(item, RetryLater(None, "no answer"))
        queue.replace([])
    assert queue.replace([operation(10), operation(11, seconds=10)]).start == []
    assert queue.seconds_until_due() == pytest.approx(10)
    assert ids(queue.replace([operation(12, member="mem_2")]).start) == ["op_012"]


@virtual
async def test_a_platform_that_is_away_is_not_held_against_the_target() -> None:
    queue, one = WorkQueue(), operation(1)
    for _ in range(OPENS_AFTER + 1):
        (item,) = queue.replace([one]).start
        queue.retry(item, PlatformAway(OSError("refused")))
        assert queue.seconds_until_due() <= PLATFORM_AWAY.longest_delay
        await asyncio.sleep(PLATFORM_AWAY.longest_delay)


@virtual
async def test_instances_take_turns_where_not_all_can_run() -> None:
    queue = WorkQueue(max_running=4)
    many = [operation(number, member=f"mem_{number}") for number in range(10)]
    few = [operation(number, member=f"mem_{number}", instance="ins_2") for number in (20, 21)]
    due = queue.replace([*many, *few])
    assert ids(due.start) == ["op_000", "op_020", "op_001", "op_021"]
    assert queue.metrics.blocked == 8
    for item in due.start:
        queue.done(item)
    rest = [each for each in (*many, *few) if each.id not in ids(due.start)]
    assert ids(queue.replace(rest).start) == ["op_002", "op_003", "op_004", "op_005"], "alone, one may have all of it"


@virtual
async def test_what_is_blocked_is_looked_at_when_something_ends_and_not_before() -> None:
    queue = WorkQueue(max_running=1)
    wanted = [operation(1), operation(2, member="mem_2")]
    (first,) = queue.replace(wanted).start
    await queue.wait(5)
    assert now() == pytest.approx(5)
    queue.done(first)
    await queue.wait(5)
    assert now() == pytest.approx(5)
    assert ids(queue.replace(wanted[1:]).start) == ["op_002"]


@virtual
async def test_a_retried_operation_whose_object_is_busy_does_not_spin() -> None:
    queue, first, second = WorkQueue(), operation(1), operation(2)
    (item,) = queue.replace([first]).start
    queue.retry(item, RetryLater(1, "not yet"))
    assert ids(queue.replace([first, second]).start) == ["op_002"]
    await asyncio.sleep(1)
    assert queue.replace([first, second]).start == []
    assert queue.seconds_until_due() == float("inf")


@virtual
async def test_the_feed_starts_only_what_nothing_can_be_in_the_way_of() -> None:
    queue = WorkQueue(max_running=2)
    assert queue.add("op_001", None, "cor_1") is None, "nobody knows yet what it is about"
    (listed,) = queue.replace([operation(1)]).start
    assert queue.add("op_002", "ins_1", "cor_1") is None, "its instance is at work"
    queue.done(listed)
    item = queue.add("op_002", "ins_1", "cor_1")
    assert item is not None
    queue.replace([operation(3, instance="ins_2")])
    queue.replace([operation(4, instance="ins_3")])
    assert queue.add("op_005", "ins_3", "cor_1") is None, "enough is at work"
    queue.done(item)
    queue.replace([])
    assert queue.add("op_006", "ins_1", "cor_1") is not None, "nothing of its instance is at work"


@virtual
async def test_nothing_starts_at_once_while_a_breaker_is_open() -> None:
    queue = WorkQueue()
    queue.replace([operation(1, instance="ins_2")])
    for number in range(OPENS_AFTER):
        (item,) = queue.replace([operation(10 + number)]).start
        queue.retry(item, RetryLater(None, "no answer"))
        queue.replace([])
    assert queue.add("op_020", "ins_1", "cor_1") is None, "the feed does not say which member it is about"


@virtual
async def test_a_closed_queue_starts_nothing() -> None:
    queue = WorkQueue()
    (first,) = queue.replace([operation(1)]).start
    queue.done(first)
    queue.close()
    assert queue.add("op_002", "ins_1", "cor_1") is None
    assert queue.replace([operation(3)]).start == []


@virtual
async def test_metrics_say_how_long_operations_wait_and_run() -> None:
    queue = WorkQueue(max_running=1)
    wanted = [operation(1), operation(2, member="mem_2")]
    (first,) = queue.replace(wanted).start
    await asyncio.sleep(30)
    assert queue.metrics.longest_running_seconds == pytest.approx(30)
    queue.done(first)
    (second,) = queue.replace(wanted[1:]).start
    await asyncio.sleep(10)
    queue.retry(second, RetryLater(5, "not yet"))
    await asyncio.sleep(7)
    queue.replace(wanted[1:])
    seen = queue.metrics
    assert (seen.running, seen.blocked, seen.delayed) == (1, 0, 0)
    assert (seen.added, seen.started, seen.retried) == (2, 3, 1)
    assert seen.wait_seconds == pytest.approx(30 + 2), "a pause is no wait"
    assert seen.work_seconds == pytest.approx(30 + 10)
