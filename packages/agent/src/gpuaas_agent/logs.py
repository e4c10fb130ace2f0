"""Log lines on stderr, each with the correlation id of the task or stream that it belongs to."""

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime

correlation_id: ContextVar[str | None] = ContextVar("correlation_id", default=None)


@contextmanager
def correlated(value: str) -> Iterator[None]:
    token = correlation_id.set(value)
    try:
        yield
    finally:
        correlation_id.reset(token)


def _at(record: logging.LogRecord) -> str:
    at = datetime.fromtimestamp(record.created, UTC)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


class JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, str] = {
            "at": _at(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if found := correlation_id.get():
            line["correlation_id"] = found
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


class PlainFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        found = correlation_id.get()
        suffix = f"  [{found}]" if found else ""
        return f"{_at(record)} {record.levelname:<7} {super().format(record)}{suffix}"


def configure_logging(*, plain: bool, level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(PlainFormatter() if plain else JsonFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Both log every request; what matters is logged by us, with its meaning.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("websockets").setLevel(logging.WARNING)
