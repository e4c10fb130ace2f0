"""Questions from a schema: with defaults, and each answer checked before the next one."""

import io
import sys
from typing import Any

import pytest

from gpuaas_cli.errors import CliError
from gpuaas_cli.prompts import ask_inputs
from gpuaas_contract.manifest import Hints

SCHEMA: dict[str, Any] = {
    "type": "object",
    "required": ["size"],
    "properties": {
        "name": {"type": "string", "title": "Name", "pattern": "^[a-z]+$", "default": "main"},
        "size": {"type": "integer", "minimum": 1, "description": "How many."},
        "colour": {"enum": ["red", "blue"]},
        "given": {"type": "string"},
    },
}


def answer(monkeypatch: pytest.MonkeyPatch, *lines: str) -> dict[str, Any]:
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    return ask_inputs(SCHEMA, {"size": Hints(label="Size", order=-1)}, {"given": "before"})


def test_answers_are_values_of_the_schema(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert answer(monkeypatch, "3", "", "blue") == {"size": 3, "name": "main", "colour": "blue"}
    asked = capsys.readouterr().err
    # Hints set order and labels; given values are not asked for.
    assert asked.index("Size: ") < asked.index("Name (optional) [main]: ") < asked.index("colour")
    assert "How many." in asked
    assert "One of red, blue." in asked
    assert "given" not in asked


def test_a_wrong_answer_is_asked_for_again(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(monkeypatch, "", "many", "0", "7", "Not A Name", "ok", "green", "")
    assert found == {"size": 7, "name": "ok"}
    said = capsys.readouterr().err
    for wrong in (
        "a value is required",
        "'many' is not of type 'integer'",
        "0 is less than the minimum",
        "does not match",
    ):
        assert wrong in said


def test_an_end_of_input_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CliError, match="the input ended before all questions were answered"):
        answer(monkeypatch, "3")
