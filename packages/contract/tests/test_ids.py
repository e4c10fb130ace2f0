"""Identifiers."""

import time

import pytest

from gpuaas_contract import ids


def test_ids_sort_by_time_of_creation() -> None:
    made = []
    for _ in range(5):
        made.append(ids.new_id(ids.OPERATION))
        before = int(time.time() * 1000)
        while int(time.time() * 1000) == before:
            pass
    assert made == sorted(made)
    assert len(set(made)) == 5


@pytest.mark.parametrize(
    "value",
    ["", "op", "op_", "op_short", "alc_01m7gfpd3h1g6rvw38w29zwk53", "op_01m7gfpd3h1g6rvw38w29zwk53\n", "op_01M7GFPD"],
)
def test_what_is_not_an_id_of_the_kind(value: str) -> None:
    assert not ids.is_id(value, ids.OPERATION)


def test_what_is() -> None:
    assert ids.is_id(ids.new_id(ids.OPERATION), ids.OPERATION)
