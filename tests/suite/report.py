"""The closing table of a run: parts, slowest tests, skips, failures, and one line that counts them."""

from collections.abc import Iterable, Sequence

from tests.suite.results import PartResult, Result

SLOWEST = 20
FAILURE_LINES = 40


def minutes(seconds: float) -> str:
    whole = round(seconds)
    return f"{whole // 60}:{whole % 60:02}"


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """The first row is the head; columns of figures are set to the right."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if column in (0, len(row) - 1) else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def part_rows(parts: Iterable[PartResult]) -> list[list[str]]:
    rows = [["part", "passed", "failed", "skipped", "minutes", "budget", ""]]
    for part in parts:
        counts = [str(part.count(outcome)) for outcome in ("passed", "failed", "skipped")]
        remark = "FAILED" if part.count("failed") else ""
        if part.over_budget:
            remark += " outgrew its budget by half or more: make it quicker, or move it (docs/testing.md)"
        rows.append([part.name, *counts, minutes(part.seconds), minutes(60 * part.budget), remark.strip()])
    return rows


def slowest(parts: Iterable[PartResult], most: int | None = None) -> list[str]:
    every = [(result.seconds, part.name, result.name) for part in parts for result in part.results]
    rows = [[f"{seconds:.1f} s", part, name] for seconds, part, name in sorted(every, reverse=True)[:most]]
    return table([["time", "part", "test"], *rows])


def failure(part: str, result: Result) -> list[str]:
    lines = result.words.splitlines() or ["it said nothing"]
    left_out = len(lines) - FAILURE_LINES
    shown = [f"… {left_out} lines before", *lines[left_out:]] if left_out > 0 else lines
    return [f"FAILED {part}: {result.name}", *(f"    {line}" for line in shown)]


def closing(parts: Sequence[PartResult], seconds: float, notes: Iterable[str] = ()) -> str:
    """Everything that the run came to, failures last, where they are seen."""
    every = [(part.name, result) for part in parts for result in part.results]
    lines = ["", f"The {SLOWEST} slowest tests", *slowest(parts, SLOWEST), ""]
    skipped = [(part, result) for part, result in every if result.outcome == "skipped"]
    lines += [f"SKIPPED {part}: {result.name}: {result.words}" for part, result in skipped]
    for part, result in every:
        if result.outcome == "failed":
            lines += [*failure(part, result), ""]
    lines += table([*part_rows(parts), ["all", *_totals(every), minutes(seconds), "", ""]])
    lines += notes
    passed, failed, left_out = _totals(every)
    return "\n".join([*lines, f"{passed} passed, {failed} failed, {left_out} skipped"])


def _totals(every: Sequence[tuple[str, Result]]) -> list[str]:
    return [str(sum(result.outcome == outcome for _, result in every)) for outcome in ("passed", "failed", "skipped")]
