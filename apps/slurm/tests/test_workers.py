"""Which worker need not be prepared again: only one whose machine its own deploy has just prepared."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from slurm_app.reconcilers.cluster import PREPARED
from slurm_app.reconcilers.workers import is_prepared


@pytest.mark.parametrize(
    ("kind", "attempt", "prepared", "expected"),
    [
        ("add", 1, ["mem_1"], True),
        ("add", 2, ["mem_1"], False),
        ("recover", 1, ["mem_1"], False),
        ("replace", 1, ["mem_1"], False),
        ("add", 1, ["mem_2"], False),
        ("add", 1, None, False),
    ],
)
def test_only_the_first_try_of_an_add_that_came_with_the_deploy(
    kind: str, attempt: int, prepared: list[str] | None, expected: bool
) -> None:
    context = SimpleNamespace(operation=SimpleNamespace(kind=kind, attempt=attempt))
    controller = SimpleNamespace(adapter_detail={} if prepared is None else {PREPARED: prepared})
    member = SimpleNamespace(id="mem_1")
    assert is_prepared(cast(Any, context), cast(Any, controller), cast(Any, member)) is expected
