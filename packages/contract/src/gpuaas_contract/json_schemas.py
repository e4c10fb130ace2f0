"""The JSON Schemas of apps and what people fill in for them, where neither is trusted.

A schema comes from a publisher and runs inside of the platform for everybody, so it must not be able to stop it:
regular expressions are those of RE2, which takes time linear in its text; keywords that cannot be bounded are
refused; there are limits to what a manifest may hold (`schema_limits`); and each check has a budget of keywords to
look at, whatever references and arrays multiply. The platform runs it in processes that it can kill."""

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

import jsonschema
import re2  # type: ignore[import-untyped]
from jsonschema.protocols import Validator
from jsonschema.validators import extend

from gpuaas_contract.problems import FieldError
from gpuaas_contract.schema_limits import SchemaTally, part_of, walk

SCHEMA_LIMIT = 64 * 1024
DEPTH_LIMIT = 32
INPUT_LIMIT = 64 * 1024
BUDGET = 100_000
"""Keywords, and parts of what they look at, in one check: some tenths of a second."""
MOST_PROBLEMS = 100
"""Nobody reads more of them; an answer is not made as large as the nonsense that it answers."""
_STATES_A_UNIT = 1_000
"""RE2 goes through at most all states of a pattern for each byte: so many take as long as a keyword does."""
_REGEX_MEMORY = 1 << 20
_UNBOUNDED = {
    "patternProperties": "list the properties by name",
    "unevaluatedProperties": "take additionalProperties",
    "unevaluatedItems": "take items",
    "$dynamicRef": "take $ref",
    "$dynamicAnchor": "take $defs",
    "$anchor": "take $defs",
    "$id": "a schema has no address here",
    "$vocabulary": "a schema has no vocabulary of its own here",
}


class TooMuchWorkError(Exception):
    pass


def find_schema_problems(schema: Any, pointer: str, tally: SchemaTally | None = None) -> list[FieldError]:
    """Find everything that is wrong with an app's schema; none if it can be used.

    The schemas of one manifest share a tally."""
    if depth_of(schema) > DEPTH_LIMIT:
        return [FieldError(pointer=pointer, detail=f"the schema is nested more than {DEPTH_LIMIT} levels deep")]
    if len(json.dumps(schema)) > SCHEMA_LIMIT:
        return [FieldError(pointer=pointer, detail=f"the schema has more than {SCHEMA_LIMIT} bytes")]
    problems = [
        FieldError(pointer=_place(pointer, error), detail=_short(error.message))
        for error in islice(_META.iter_errors(schema), MOST_PROBLEMS)
    ]
    if problems:
        return problems
    if isinstance(schema, Mapping) and schema.get("type") != "object":
        problems.append(FieldError(pointer=pointer, detail="type must be object: people fill in named values"))
    limits = list((tally or SchemaTally()).find_problems(schema, pointer))
    # A pattern that is too long is not even compiled.
    problems += limits or islice(_unusable(schema, pointer), MOST_PROBLEMS)
    return problems or _default_problems(schema, pointer)


def find_value_problems(value: Any, schema: Mapping[str, Any], pointer: str = "") -> list[FieldError]:
    """Find where a value does not match a schema."""
    if len(json.dumps(value)) > INPUT_LIMIT:
        return [FieldError(pointer=pointer, detail=f"more than {INPUT_LIMIT} bytes")]
    try:
        return [
            FieldError(pointer=_place(pointer, error), detail=_short(error.message))
            for error in islice(_validator(schema).iter_errors(value), MOST_PROBLEMS)
        ]
    except (TooMuchWorkError, RecursionError, ArithmeticError):
        detail = "checking this against the schema takes too long: it is too large, or the schema refers to itself"
        return [FieldError(pointer=pointer, detail=detail)]


def depth_of(document: Any) -> int:
    """Return how deeply a document is nested, without recursion."""
    deepest, waiting = 0, [(document, 1)]
    while waiting:
        node, depth = waiting.pop()
        deepest = max(deepest, depth)
        if depth > 10_000:
            break
        children = node.values() if isinstance(node, Mapping) else node if isinstance(node, list) else ()
        waiting.extend((child, depth + 1) for child in children)
    return deepest


def pattern_problem(pattern: str) -> str | None:
    """Return why a regular expression is refused; None if it may be used."""
    try:
        _compile(pattern)
    except re2.error as error:
        why = error.args[0].decode() if error.args and isinstance(error.args[0], bytes) else str(error)
        return f"not a regular expression of RE2, which takes no look-around and no back-reference: {why}"
    return None


def _compile(pattern: str) -> Any:
    options = re2.Options()
    options.max_mem = _REGEX_MEMORY
    options.log_errors = False
    return re2.compile(pattern, options)


def _place(pointer: str, error: jsonschema.ValidationError) -> str:
    return pointer + "".join(part_of(part) for part in error.absolute_path)


def _short(message: str) -> str:
    return message if len(message) <= 500 else message[:500] + " …"


def _unusable(schema: Any, pointer: str) -> Iterator[FieldError]:
    for here, keyword, value in walk(schema, pointer):
        if keyword in _UNBOUNDED:
            yield FieldError(pointer=here, detail=f"{keyword} is not supported: {_UNBOUNDED[keyword]}")
        elif keyword == "pattern" and (problem := pattern_problem(value)):
            yield FieldError(pointer=here, detail=problem)
        elif keyword == "$ref" and not _is_there(value, schema):
            yield FieldError(pointer=here, detail=f"{_short(value)!r} is not below #/$defs of this schema")


def _is_there(reference: str, root: Any) -> bool:
    start, _, name = reference.rpartition("/")
    return start == "#/$defs" and name in root.get("$defs", {})


def _default_problems(schema: Any, pointer: str) -> list[FieldError]:
    """A default is used as it stands, so it must be a value that would be taken."""
    if not isinstance(schema, Mapping):
        return []
    found = []
    for name, part in schema.get("properties", {}).items():
        if isinstance(part, Mapping) and "default" in part:
            own = {"$defs": schema.get("$defs", {}), **part}
            where = f"{pointer}/properties{part_of(name)}/default"
            found += find_value_problems(part["default"], own, where)
    return found


class _Work:
    def __init__(self) -> None:
        self.done = 0

    def count(self, cost: int = 1) -> None:
        self.done += cost
        if self.done > BUDGET:
            raise TooMuchWorkError


def _counted(function: Any, work: _Work) -> Any:
    def checked(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[Any]:
        # One for the keyword, and one for each part of it or of the value that it may go through.
        work.count(1 + sum(len(part) for part in (value, instance) if isinstance(part, list | dict)))
        for error in function(validator, value, instance, schema) or ():
            work.count()
            yield error

    return checked


def _pattern_within(work: _Work) -> Any:
    def check(validator: Any, pattern: str, instance: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:
        if not validator.is_type(instance, "string"):
            return
        expression = _compile(pattern)
        work.count(expression.programsize * len(instance) // _STATES_A_UNIT)
        if expression.search(instance) is None:
            shown = instance if len(instance) <= 100 else instance[:100] + " …"
            yield jsonschema.ValidationError(f"{shown!r} does not match {pattern!r}")

    return check


def _unique(validator: Any, wanted: bool, instance: Any, schema: Any) -> Iterator[jsonschema.ValidationError]:
    """By a set of texts: the library's own comparison of each with each takes minutes for what is still small."""
    if wanted and validator.is_type(instance, "array"):
        texts = {json.dumps(item, sort_keys=True) for item in instance}
        if len(texts) != len(instance):
            yield jsonschema.ValidationError("the items are not all different")


_KEYWORDS = {**jsonschema.Draft202012Validator.VALIDATORS, "uniqueItems": _unique}
_META: Validator = extend(jsonschema.Draft202012Validator, {"uniqueItems": _unique})(  # type: ignore[no-untyped-call]
    jsonschema.Draft202012Validator.META_SCHEMA
)


def _validator(schema: Mapping[str, Any]) -> Validator:
    work = _Work()
    keywords = {**_KEYWORDS, "pattern": _pattern_within(work)}
    # Draft 2020-12 has it; it looks names up with Python's own expressions. Published schemas do not use it.
    keywords.pop("patternProperties")
    counted = {name: _counted(check, work) for name, check in keywords.items()}
    own = extend(jsonschema.Draft202012Validator, counted)  # type: ignore[no-untyped-call]
    found: Validator = own(schema)
    return found
