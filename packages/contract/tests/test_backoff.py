from itertools import islice

from gpuaas_contract.backoff import Backoff

STEADY = Backoff(first_delay=0.5, longest_delay=3, jitter=0)


def test_pauses_double_up_to_the_longest() -> None:
    assert list(islice(STEADY.delays(), 5)) == [0.5, 1, 2, 3, 3]


def test_a_row_of_failures_without_end_overflows_nothing() -> None:
    assert STEADY.delay(1_000_000) == 3


def test_clients_that_failed_together_come_back_spread_over_half_of_the_pause() -> None:
    pauses = [Backoff(first_delay=4, longest_delay=60).delay(2) for _ in range(1_000)]
    assert 4 <= min(pauses) < 5
    assert 7 < max(pauses) <= 8
