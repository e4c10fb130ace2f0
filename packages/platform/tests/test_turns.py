"""The queue for hashing: addresses take turns, and no address keeps another one out."""

import asyncio

import pytest

from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.core.turns import LAST_EVERY, Rank, Turns


class Held:
    """A queue whose one worker is busy until `go_on`; notes who had a turn."""

    def __init__(self, most: int = 100, most_each: int = 10, workers: int = 1) -> None:
        self.queue = Turns(workers, most, most_each)
        self.order: list[str] = []
        self._gate = asyncio.Event()
        self._tasks: list[asyncio.Task[str]] = []

    async def ask(self, key: str, rank: Rank = Rank.CLEAN) -> asyncio.Task[str]:
        async def turn() -> str:
            try:
                async with self.queue.turn(key, rank):
                    self.order.append(key)
                    await self._gate.wait()
            except Refusal as refusal:
                return "refused" if refusal.status == 429 and refusal.retry_after else "failed"
            return "served"

        task = asyncio.create_task(turn())
        self._tasks.append(task)
        await asyncio.sleep(0)
        return task

    async def go_on(self) -> list[str]:
        self._gate.set()
        return await asyncio.gather(*self._tasks)


async def test_addresses_take_turns() -> None:
    held = Held()
    for key in ("flood", "flood", "flood", "flood", "ada", "flood", "bob", "ada"):
        await held.ask(key)
    assert held.order == ["flood"]
    assert set(await held.go_on()) == {"served"}
    assert held.order == ["flood", "flood", "ada", "bob", "flood", "ada", "flood", "flood"]
    assert held.queue.waiting == 0


async def test_one_address_has_so_many_places_and_no_more() -> None:
    held = Held(most_each=3)
    for _ in range(10):
        await held.ask("flood")
    await held.ask("ada")
    answers = await held.go_on()
    assert (answers.count("served"), answers.count("refused"), answers[-1]) == (5, 6, "served")


async def test_a_full_queue_makes_room_for_whoever_has_fewer_waiting() -> None:
    held = Held(most=4, most_each=10)
    for key in ("flood",) * 5 + ("ada",):
        await held.ask(key)
    answers = await held.go_on()
    assert answers == ["served"] * 4 + ["refused", "served"]
    assert held.order[:3] == ["flood", "flood", "ada"]


async def test_a_queue_full_of_equals_refuses_the_next() -> None:
    held = Held(most=3)
    for key in ("a", "b", "c", "d", "e"):
        await held.ask(key)
    assert await held.go_on() == ["served"] * 4 + ["refused"]


async def test_suspects_give_way_and_still_have_their_turns() -> None:
    held = Held(most=8)
    await held.ask("busy")
    for number in range(8):
        await held.ask(f"suspect{number}", Rank.SUSPECT)
    for number in range(6):
        await held.ask(f"clean{number}")
    answers = await held.go_on()
    assert answers.count("refused") == 6
    assert answers[-6:] == ["served"] * 6
    waited = held.order[1:]
    assert [key for key in waited[: LAST_EVERY - 1] if key.startswith("suspect")] == []
    assert waited[LAST_EVERY - 1].startswith("suspect")
    assert len([key for key in waited if key.startswith("suspect")]) == 2


async def test_who_is_known_comes_before_a_crowd_that_is_not() -> None:
    held = Held(most=50)
    for number in range(51):
        await held.ask(f"stranger{number}")
    ada = await held.ask("ada", Rank.KNOWN)
    answers = await held.go_on()
    assert (ada.result(), answers.count("refused")) == ("served", 1)
    assert held.order[1] == "ada"


async def test_nobody_is_let_wait_for_long() -> None:
    """A turn takes two seconds, and there is room for those who have theirs within five."""
    now = 0.0
    queue = Turns(1, 100, 100, most_seconds=5, clock=lambda: now)
    async with queue.turn("a"):
        now = 2.0
    async with queue.turn("a"):
        tasks = [asyncio.create_task(_take(queue, "b")) for _ in range(50)]
        await asyncio.sleep(0)
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert len([result for result in results if isinstance(result, Refusal)]) == 48


async def test_whoever_goes_away_frees_the_place() -> None:
    held = Held(most=2)
    await held.ask("a")
    gone = await held.ask("b")
    await held.ask("c")
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert held.queue.waiting == 1
    late = await held.ask("d")
    held._tasks.remove(gone)
    assert await held.go_on() == ["served"] * 3
    assert late.result() == "served"


async def test_whoever_is_cancelled_just_before_the_turn_is_passed_over() -> None:
    queue = Turns(1, 10, 10)
    async with queue.turn("a"):
        gone, next_one = (asyncio.create_task(_take(queue, key)) for key in ("b", "c"))
        await asyncio.sleep(0)
        gone.cancel()
    async with asyncio.timeout(10):
        await next_one
    assert queue.waiting == 0


async def test_whoever_goes_away_when_the_turn_comes_passes_it_on() -> None:
    queue = Turns(1, 10, 10)
    async with queue.turn("a"):
        waiting = asyncio.create_task(_take(queue, "b"))
        await asyncio.sleep(0)
    # The turn was given to b by leaving the block; b has not run yet.
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    async with asyncio.timeout(10):
        await _take(queue, "c")


async def _take(queue: Turns, key: str) -> None:
    async with queue.turn(key):
        pass
