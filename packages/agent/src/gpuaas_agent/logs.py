"""Log lines on stderr, with the fields that the platform's lines have: one JSON object each, or plain for people.

A line names the task or stream that it belongs to by the `correlation_id` bound with `structlog.contextvars`.
"""

import logging
import sys
from typing import Any

import structlog

_FIELDS: list[Any] = [
    structlog.contextvars.merge_contextvars,
    structlog.stdlib.add_log_level,
    structlog.stdlib.add_logger_name,
    structlog.processors.TimeStamper(fmt="iso", utc=True),
]
_JSON: list[Any] = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer(ensure_ascii=False)]
_PLAIN: list[Any] = [structlog.dev.ConsoleRenderer(colors=False, exception_formatter=structlog.dev.plain_traceback)]


def configure_logging(*, plain: bool, level: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=_FIELDS,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *(_PLAIN if plain else _JSON),
            ],
        )
    )
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    # Both log every request; what matters is logged by us, with its meaning.
    logging.getLogger("httpx").setLevel(logging.WARNING)
    logging.getLogger("websockets").setLevel(logging.WARNING)
