"""Failed log-ins in the audit trail: told soon, and never more than a bounded number of entries."""

from gpuaas_platform.accounts.rules.failures import (
    MOST_ADDRESSES,
    MOST_TARGETS,
    SEVERAL,
    WINDOW_SECONDS,
    Failure,
    FailureWindows,
)
from gpuaas_platform.core.origins import Origin


class Clock:
    now = 50.0

    def __call__(self) -> float:
        return self.now


def failure(
    address: str, target: str = "usr_1", *, action: str = "auth.login_failed", limited: bool = False
) -> Failure:
    return Failure(action, target, Origin(address, "curl", lambda: "sessions"), f"cor_{address}", limited)


def test_the_first_is_due_at_once_and_the_rest_of_its_minute_as_one() -> None:
    clock = Clock()
    windows = FailureWindows(clock)
    for _ in range(5):
        windows.note(failure("203.0.113.9"))
    windows.note(failure("203.0.113.9", limited=True))
    (first,) = windows.take_due()
    assert (first.target, first.detail, first.origin.address) == ("usr_1", {"count": 1}, "203.0.113.9")
    assert windows.take_due() == []
    clock.now += WINDOW_SECONDS
    (rest,) = windows.take_due()
    assert (rest.target, rest.correlation_id) == ("usr_1", "cor_203.0.113.9")
    assert rest.detail == {"count": 5, "limited": 1, "seconds": 60, "targets": {"usr_1": 4}, "other_targets": 0}
    windows.note(failure("203.0.113.9"))
    assert [entry.detail for entry in windows.take_due()] == [{"count": 1}]


def test_one_alone_is_told_once() -> None:
    clock = Clock()
    windows = FailureWindows(clock)
    windows.note(failure("203.0.113.9"))
    assert len(windows.take_due()) == 1
    clock.now += WINDOW_SECONDS
    assert windows.take_due() == []


def test_a_flood_is_a_bounded_number_of_entries_of_a_bounded_size() -> None:
    clock = Clock()
    windows = FailureWindows(clock)
    for number in range(20_000):
        windows.note(failure(f"10.0.{number % 500 // 250}.{number % 250}", f"unknown/{number}"))
    first = windows.take_due()
    clock.now += WINDOW_SECONDS
    rest = windows.take_due()
    assert len(first) == len(rest) == MOST_ADDRESSES + 1
    assert sum(entry.detail["count"] for entry in [*first, *rest]) == 20_000
    assert all(len(entry.detail["targets"]) <= MOST_TARGETS for entry in rest)
    (together,) = [entry for entry in first if not entry.origin.address]
    assert (together.target, together.origin.service) == (SEVERAL, "sessions")


def test_at_the_end_everything_is_due() -> None:
    windows = FailureWindows(Clock())
    for _ in range(3):
        windows.note(failure("203.0.113.9"))
    assert [entry.detail["count"] for entry in windows.take_due(all_of_them=True)] == [1, 2]
