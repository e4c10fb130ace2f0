"""Schemas that are meant to keep whoever checks them busy, and the processes that check them."""

from contextlib import suppress
from pathlib import Path
from typing import Any


def slow_schema(doublings: int = 12, **of_a: Any) -> dict[str, Any]:
    """Within all limits, and ten seconds for one value: each of thousands of references writes out a long constant for
    an error that nobody reads."""
    defs: dict[str, Any] = {f"d{n}": {"allOf": [{"$ref": f"#/$defs/d{n + 1}"}] * 2} for n in range(doublings)}
    defs[f"d{doublings}"] = {"if": {"const": [[1e-300 / 3] * 2_500]}}
    return {"type": "object", "$defs": defs, "properties": {"a": {"$ref": "#/$defs/d0", **of_a}}}


def four_patterns_on_a_long_default() -> dict[str, Any]:
    """Each pattern has thousands of states, and goes through them for each of fifty thousand letters."""
    patterns = [{"pattern": f"(a?){{{900 + number}}}b$"} for number in range(4)]
    return {"type": "object", "properties": {"a": {"type": "string", "allOf": patterns, "default": "a" * 52_000}}}


def check_workers(pid: int) -> set[int]:
    """Processes that a process has started to check schemas, and that have not ended."""
    children: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*"):
        # A thread may end meanwhile.
        with suppress(FileNotFoundError, ProcessLookupError):
            children |= set(map(int, (task / "children").read_text().split()))
    return {child for child in children if is_check_worker(child)}


def is_check_worker(pid: int) -> bool:
    try:
        return "check_worker" in Path(f"/proc/{pid}/cmdline").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
