"""Delays that grow with failures."""

import pytest

from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.core.limits import Allowance, GrowingDelay

ALLOWANCE = Allowance(free=3, first_seconds=2, most_seconds=60)


def test_the_delay_doubles_and_has_an_end() -> None:
    assert [ALLOWANCE.delay_after(failures) for failures in range(10)] == [0, 0, 0, 2, 4, 8, 16, 32, 60, 60]
    assert ALLOWANCE.delay_after(10**9) == 60
    assert Allowance(0, 2, 60).delay_after(0) == 0


class Clock:
    now = 1_000.0

    def __call__(self) -> float:
        return self.now


def test_a_key_waits_longer_each_time_and_no_other_key_does() -> None:
    clock = Clock()
    delay = GrowingDelay(ALLOWANCE, "of this kind", forget_seconds=100, clock=clock)
    for _ in range(3):
        delay.check("eve")
        delay.failed("eve")
    delay.check("ada")
    with pytest.raises(Refusal, match=r"of this kind; try again in 2 s") as refused:
        delay.check("eve")
    assert refused.value.retry_after == 2
    clock.now += 2
    delay.check("eve")
    delay.failed("eve")
    with pytest.raises(Refusal, match="4 s"):
        delay.check("eve")
    delay.succeeded("eve")
    delay.check("eve")


def test_old_failures_are_forgotten() -> None:
    clock = Clock()
    delay = GrowingDelay(ALLOWANCE, "of this kind", forget_seconds=100, clock=clock)
    for _ in range(9):
        delay.failed("eve")
    clock.now += 101
    delay.failed("eve")
    delay.check("eve")
