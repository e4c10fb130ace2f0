"""The agent's log lines: the platform's fields, and the correlation id of what a line belongs to."""

import json
import logging
from collections.abc import Iterator

import pytest
from structlog.contextvars import bound_contextvars

from gpuaas_agent.logs import configure_logging

log = logging.getLogger("gpuaas_agent.tasks")


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:], root.level = handlers, level


def test_a_line_is_json_with_the_fields_of_the_platform(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(plain=False, level="info")
    with bound_contextvars(correlation_id="cor_1"):
        log.info("%s done", "create_slice")
    log.info("linked to the platform")
    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    assert first.pop("timestamp").endswith("Z")
    assert first == {
        "event": "create_slice done",
        "level": "info",
        "logger": "gpuaas_agent.tasks",
        "correlation_id": "cor_1",
    }
    assert "correlation_id" not in second


def test_a_traceback_stays_in_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(plain=False, level="info")
    try:
        raise KeyError("gone")
    except KeyError:
        log.exception("bug")
    (line,) = capsys.readouterr().err.splitlines()
    assert "KeyError: 'gone'" in json.loads(line)["exception"]


def test_a_plain_line_names_what_it_belongs_to(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(plain=True, level="warning")
    with bound_contextvars(correlation_id="cor_1"):
        log.info("not asked for")
        log.warning("no link to the platform")
    (line,) = capsys.readouterr().err.splitlines()
    assert "[warning" in line
    assert "no link to the platform" in line
    assert "correlation_id=cor_1" in line
    assert "\x1b" not in line


def test_libraries_do_not_log_every_request(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logging(plain=False, level="info")
    logging.getLogger("httpx").info("HTTP Request: GET …")
    logging.getLogger("websockets.client").info("connection open")
    assert capsys.readouterr().err == ""
