"""Identifiers."""

import time

import pytest

from gpuaas_contract import ids


def test_ids_sort_by_time_of_creation() -> None:
    """Thousands in a millisecond or two."""
    made = [ids.new_id(ids.OPERATION) for _ in range(5_000)]
    assert made == sorted(set(made))


def test_ids_go_on_when_the_clock_is_set_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = ids.new_id(ids.OPERATION)
    earlier = time.time() - 3_600
    monkeypatch.setattr(time, "time", lambda: earlier)
    assert before < ids.new_id(ids.OPERATION) < ids.new_id(ids.OPERATION)


@pytest.mark.parametrize(
    "value",
    ["", "op", "op_", "op_short", "alc_01m7gfpd3h1g6rvw38w29zwk53", "op_01m7gfpd3h1g6rvw38w29zwk53\n", "op_01M7GFPD"],
)
def test_what_is_not_an_id_of_the_kind(value: str) -> None:
    assert not ids.is_id(value, ids.OPERATION)


def test_what_is() -> None:
    assert ids.is_id(ids.new_id(ids.OPERATION), ids.OPERATION)
