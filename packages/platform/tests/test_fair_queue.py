"""Whose work is next: one at a time for each owner, who used least of late first, one worker left for the others."""

import pytest

from gpuaas_platform.core.fair_queue import MOST_WAITING, MOST_WAITING_OF_ONE, FairQueue, QueueFullError


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def taken(queue: FairQueue[str]) -> list[str]:
    items = []
    while (found := queue.take()) is not None:
        items.append(found[1])
    return items


def test_one_at_a_time_for_each_owner(clock: Clock) -> None:
    queue: FairQueue[str] = FairQueue(3, clock)
    for item in ("a1", "a2", "b1"):
        queue.put(item[0], item)
    assert taken(queue) == ["a1", "b1"]
    queue.done("a", 0.01)
    assert taken(queue) == ["a2"]


def test_no_more_than_there_are_workers(clock: Clock) -> None:
    queue: FairQueue[str] = FairQueue(2, clock)
    for item in ("a1", "b1", "c1"):
        queue.put(item[0], item)
    assert taken(queue) == ["a1", "b1"]
    queue.done("b", 0.01)
    assert taken(queue) == ["c1"]


def test_who_was_slow_waits_for_the_others_and_leaves_them_a_worker(clock: Clock) -> None:
    queue: FairQueue[str] = FairQueue(2, clock)
    for owner in "xy":
        queue.put(owner, f"{owner}0")
    assert taken(queue) == ["x0", "y0"]
    for owner in "xy":
        queue.done(owner, 2)
        queue.put(owner, f"{owner}1")
    # Two are slow and one worker is free for them; the other one waits for somebody else.
    assert taken(queue) == ["x1"]
    queue.put("a", "a1")
    assert taken(queue) == ["a1"]
    queue.done("a", 0.01)
    assert taken(queue) == []
    queue.done("x", 2)
    queue.put("x", "x2")
    queue.put("b", "b1")
    assert taken(queue) == ["b1", "y1"]


def test_a_single_worker_serves_all(clock: Clock) -> None:
    queue: FairQueue[str] = FairQueue(1, clock)
    queue.put("x", "x1")
    assert taken(queue) == ["x1"]
    queue.done("x", 60)
    queue.put("x", "x2")
    assert taken(queue) == ["x2"]


def test_slowness_is_forgotten(clock: Clock) -> None:
    queue: FairQueue[str] = FairQueue(2, clock)
    queue.put("x", "x1")
    taken(queue)
    queue.done("x", 2)
    assert queue.used("x") == 2
    clock.now += 60
    assert queue.used("x") == 1
    clock.now += 600
    assert queue.used("x") == 0


def test_what_waits_is_bounded_and_can_be_taken_back(clock: Clock) -> None:
    queue: FairQueue[str] = FairQueue(1, clock)
    for number in range(MOST_WAITING_OF_ONE):
        queue.put("x", f"x{number}")
    with pytest.raises(QueueFullError):
        queue.put("x", "one more")
    queue.put("a", "a1")
    queue.remove("x", "x0")
    queue.remove("x", "never there")
    queue.put("x", "one more")
    assert taken(queue) == ["x1"]
    for number in range(MOST_WAITING - MOST_WAITING_OF_ONE):
        queue.put(f"t{number}", "t")
    with pytest.raises(QueueFullError):
        queue.put("b", "b1")
