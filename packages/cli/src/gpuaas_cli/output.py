"""Results on stdout as table, JSON or YAML; everything else on stderr. Colours only for people."""

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

if TYPE_CHECKING:
    from pydantic import BaseModel

format = "table"
"""Of this process: one call of the command line has one format."""

Item = TypeVar("Item")
Columns = Mapping[str, Callable[[Item], object]]
_CODES = {"red": "31", "green": "32", "yellow": "33", "dim": "2", "bold": "1"}
_COLOUR_OF = {
    **dict.fromkeys(("active", "running", "ready", "succeeded", "delivered", "attached", "true"), "green"),
    **dict.fromkeys(("failed", "release_failed", "delete_failed", "lost", "offline", "impaired", "degraded"), "red"),
    **dict.fromkeys(("cancelled", "released", "deleted", "removed", "decommissioned"), "dim"),
}


def style(text: str, name: str | None, stream: TextIO) -> str:
    if name is None or not stream.isatty() or os.environ.get("NO_COLOR"):
        return text
    return f"\x1b[{_CODES[name]}m{text}\x1b[0m"


def note(text: str) -> None:
    """Print a note for people on stderr, beside the result."""
    print(text, file=sys.stderr)


def plain(value: Any) -> Any:
    """Convert a value to what JSON and YAML can hold."""
    if hasattr(value, "model_dump"):
        return value.model_dump(mode="json", by_alias=True)
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def document(value: Any) -> bool:
    """Print as JSON or YAML if asked for; return False where a table is wanted."""
    if format == "json":
        print(json.dumps(plain(value), indent=2, ensure_ascii=False))
    elif format == "yaml":
        yaml(value)
    else:
        return False
    return True


def yaml(value: Any) -> None:
    import yaml as pyyaml

    print(pyyaml.safe_dump(plain(value), sort_keys=False, allow_unicode=True).rstrip())


def items(found: "Sequence[Item]", columns: Columns[Item], *, empty: str) -> None:
    if document(found):
        return
    if not found:
        note(empty)
        return
    table([[text(read(item)) for read in columns.values()] for item in found], list(columns))


def one(item: "BaseModel", fields: Mapping[str, object]) -> None:
    if not document(item):
        pairs(fields)


def pairs(fields: Mapping[str, object]) -> None:
    width = max((len(name) for name in fields), default=0) + 1
    for name, value in fields.items():
        shown = text(value)
        if shown:
            indent = "\n" + " " * (width + 1)
            print(f"{name + ':':<{width}} {_coloured(shown).replace(chr(10), indent)}")


def heading(title: str) -> None:
    print(f"\n{style(title, 'bold', sys.stdout)}")


def table(rows: Sequence[Sequence[str]], headers: Sequence[str]) -> None:
    lines = [[clean(cell.replace("\n", " ")) for cell in row] for row in rows]
    widths = [max(len(row[i]) for row in [headers, *lines]) for i in range(len(headers))]
    print(style(_line([h.upper() for h in headers], widths), "dim", sys.stdout))
    for row in lines:
        cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
        print("  ".join(_coloured(cell) for cell in cells).rstrip())


def _line(cells: Iterable[str], widths: Sequence[int]) -> str:
    return "  ".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()


def _coloured(cell: str) -> str:
    return style(cell, _COLOUR_OF.get(cell.strip()), sys.stdout)


def text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, datetime):
        return value.astimezone().strftime("%Y-%m-%d %H:%M:%S")
    if isinstance(value, list | tuple):
        return ", ".join(text(item) for item in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={text(item)}" for key, item in value.items())
    return clean(str(value))


def clean(value: str) -> str:
    """Replace control characters: text from others must not control the reader's terminal."""
    return "".join(c if c == "\n" or c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in value)


def seconds(value: float) -> str:
    return f"{value:.1f} s" if value < 60 else f"{int(value // 60)} min {int(value % 60)} s"


def count(number: int, noun: str) -> str:
    return f"1 {noun}" if number == 1 else f"{number} {noun}s"
