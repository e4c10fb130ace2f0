"""One correlation id from the click to the remote command: bound to a block of calls, or new per call."""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from gpuaas_contract import ids

_bound: ContextVar[str | None] = ContextVar("gpuaas_correlation_id", default=None)


def current_correlation_id() -> str:
    """The bound id, or a new one."""
    return _bound.get() or ids.new_id(ids.CORRELATION)


@contextmanager
def correlation(correlation_id: str | None = None) -> Iterator[str]:
    """Every call in the block, also in tasks started there, carries this id (a new one where absent)."""
    value = correlation_id or ids.new_id(ids.CORRELATION)
    previous = _bound.set(value)
    try:
        yield value
    finally:
        _bound.reset(previous)
