"""One seed for everything that a run of the tests leaves to chance, and their order where that is left to it, too."""

import os
import random
import secrets
from itertools import groupby

import pytest

# Before any worker starts, so that all of them have the same.
SEED = int(os.environ.get("GPUAAS_SEED") or secrets.randbelow(2**31))
os.environ["GPUAAS_SEED"] = str(SEED)


def pytest_report_header() -> str:
    return f"seed: GPUAAS_SEED={SEED}"


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Shuffle modules, and the tests of each."""
    if not os.environ.get("GPUAAS_SHUFFLE"):
        return
    chance = random.Random(SEED)  # noqa: S311 - an order, not a secret
    modules = [list(tests) for _, tests in groupby(sorted(items, key=_module), key=_module)]
    chance.shuffle(modules)
    for tests in modules:
        chance.shuffle(tests)
    items[:] = [test for tests in modules for test in tests]


def _module(item: pytest.Item) -> str:
    return str(item.path)
