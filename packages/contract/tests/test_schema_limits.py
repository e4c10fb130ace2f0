"""Bounds on the schemas of a manifest: patterns, defaults and branches, one by one and together."""

import json
from typing import Any

import pytest

from gpuaas_contract import json_schemas, schema_limits
from gpuaas_contract.json_schemas import find_schema_problems, find_value_problems
from gpuaas_contract.manifest_rules import find_problems

MANIFEST: dict[str, Any] = {
    "schema": "gpuaas.app/v1",
    "slug": "echo",
    "title": "Echo",
    "version": "1.2.3",
    "runtime": {"name": "echo", "version": "7"},
    "components": [{"key": "head", "title": "Head", "primary": True}],
    "operations": [{"kind": "deploy", "title": "Deploy"}, {"kind": "decommission", "title": "End"}],
}
SLOW_PATTERN = "(a?){900}b$"
"""Compiles within the memory that a pattern may have, and goes through thousands of states for each byte."""


def _of(part: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": part}}


def _hostile(characters: int, pattern: str = SLOW_PATTERN) -> dict[str, Any]:
    parts = [{"pattern": pattern.replace("900", str(900 + number))} for number in range(4)]
    return _of({"type": "string", "allOf": parts, "default": "a" * characters})


@pytest.mark.parametrize(
    ("schema", "pointer", "complaint"),
    [
        (_of({"pattern": "a" * 1_001}), "/properties/a/pattern", "1001 characters; 1000 are allowed"),
        (_of({"allOf": [{"pattern": "a"}] * 201}), "/properties/a/allOf/200/pattern", "more than 200 patterns"),
        (
            _of({"allOf": [{"pattern": "a" * 1_000}] * 17}),
            "/properties/a/allOf/16/pattern",
            "more than 16384 characters of patterns",
        ),
        (_of({"default": "a" * 8_200}), "/properties/a/default", "8202 bytes; 8192 are allowed"),
        (
            {"type": "object", "properties": {str(n): {"default": n} for n in range(401)}},
            "/properties/400/default",
            "more than 400 defaults",
        ),
        (
            {"type": "object", "properties": {str(n): {"default": "a" * 7_000} for n in range(5)}},
            "/properties/4/default",
            "more than 32768 bytes of defaults",
        ),
        (_of({"anyOf": [{}] * 501}), "/properties/a/anyOf", "more than 500 branches"),
        (_of({"items": {"not": {"oneOf": [{}] * 500}}}), "/properties/a/items/not/oneOf", "more than 500 branches"),
        ({"type": "object", "dependentSchemas": {str(n): {} for n in range(501)}}, "/dependentSchemas", "500"),
    ],
)
def test_limits_are_reported_where_they_are_passed(schema: Any, pointer: str, complaint: str) -> None:
    (problem,) = find_schema_problems(schema, "")
    assert problem.pointer == pointer
    assert complaint in problem.detail


def test_what_is_just_within_the_limits_is_fine() -> None:
    patterns = [{"pattern": "^a*$"}] * schema_limits.MOST_PATTERNS
    assert find_schema_problems(_of({"allOf": patterns, "default": "a" * 8_000}), "") == []


def test_the_schemas_of_a_manifest_count_together() -> None:
    """Each is within the limits, and two hundred of them would not be."""
    part = _of({"allOf": [{"pattern": "a"}] * 150})
    more = [{"kind": f"do-{n}", "title": "Do", "input_schema": part} for n in range(3)]
    found = find_problems({**MANIFEST, "operations": [*MANIFEST["operations"], *more]})
    assert [problem.pointer for problem in found] == ["/operations/3/input_schema/properties/a/allOf/50/pattern"]


def test_four_slow_patterns_on_a_long_default() -> None:
    """They took five seconds for each publish."""
    hostile = _hostile(50_000)
    assert 50_000 < len(json.dumps(hostile)) < json_schemas.SCHEMA_LIMIT
    (problem,) = find_schema_problems(hostile, "/inputs")
    assert (problem.pointer, "bytes" in problem.detail) == ("/inputs/properties/a/default", True)


def test_states_times_bytes_count_against_the_budget() -> None:
    """Within all limits, and the text is the deployer's: no time is spent on what would take long."""
    schema = _of({"type": "string", "allOf": _hostile(0)["properties"]["a"]["allOf"]})
    assert find_schema_problems(schema, "") == []
    (problem,) = find_value_problems({"a": "a" * 60_000}, schema, "/inputs")
    assert (problem.pointer, "takes too long" in problem.detail) == ("/inputs", True)
    # A short one is looked at.
    assert "does not match" in find_value_problems({"a": "a" * 20}, schema)[0].detail


@pytest.mark.parametrize(
    "keyword", [{"dependentRequired": {"pattern": ["$ref"]}}, {"x-notes": {"pattern": {"$ref": 7}}}, {"$comment": "x"}]
)
def test_what_only_looks_like_a_keyword_is_left_alone(keyword: dict[str, Any]) -> None:
    assert find_schema_problems({"type": "object", **keyword}, "") == []


def test_items_of_many_kinds_are_compared_once_each() -> None:
    """The library compares each with each where they cannot be sorted: minutes for 64 KiB."""
    mixed = [item for number in range(3_000) for item in (number, str(number))]
    problems = find_schema_problems({"type": "object", "required": mixed}, "")
    assert len(problems) == json_schemas.MOST_PROBLEMS
    assert problems[0].pointer == "/required/0"


def test_answers_are_not_as_large_as_what_they_answer() -> None:
    many = find_value_problems({"a": [0] * 10_000}, _of({"items": {"type": "string"}}))
    assert len(many) == json_schemas.MOST_PROBLEMS
    (problem,) = find_schema_problems({"type": "x" * 60_000}, "")
    assert len(problem.detail) < 600
