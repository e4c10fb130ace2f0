"""How much the JSON Schemas of one manifest may ask of those who check values by them.

A schema within 64 KiB can hold enough patterns and branches to keep a core busy for minutes. What is beyond these
limits is refused with its place, before anything is run."""

import json
from collections.abc import Iterator, Mapping
from typing import Any

from gpuaas_contract.problems import FieldError

LONGEST_PATTERN = 1_000
MOST_PATTERNS, PATTERNS_LIMIT = 200, 16 * 1024
LARGEST_DEFAULT = 8 * 1024
MOST_DEFAULTS, DEFAULTS_LIMIT = 400, 32 * 1024
MOST_BRANCHES = 500
"""Of `allOf`, `anyOf`, `oneOf`, `not`, `if`, `then`, `else`, `dependentSchemas`, `contains` and `$ref` together."""

_NAMED = {"properties", "$defs", "dependentSchemas"}
_LISTED = {"allOf", "anyOf", "oneOf", "prefixItems"}
_SINGLE = {"not", "if", "then", "else", "contains", "items", "additionalProperties", "propertyNames"}
"""Keywords below which there are schemas. Nothing else is ever run, whatever it looks like."""
_BRANCHING = {"allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas", "contains", "$ref"}


class SchemaTally:
    """Counts what the schemas of one manifest hold together; each limit is reported once, where it is passed."""

    def __init__(self) -> None:
        self._patterns = self._pattern_characters = 0
        self._defaults = self._default_bytes = 0
        self._branches = 0

    def find_problems(self, schema: Any, pointer: str) -> Iterator[FieldError]:
        """Add a schema that is valid by JSON Schema's own rules and is not nested too deeply."""
        for here, keyword, value in walk(schema, pointer):
            # One sentence for each place: what is too large by itself is too large for the sum.
            for detail in list(self._count(keyword, value))[:1]:
                yield FieldError(pointer=here, detail=detail)

    def _count(self, keyword: str, value: Any) -> Iterator[str]:
        if keyword == "pattern":
            if len(value) > LONGEST_PATTERN:
                yield f"the pattern has {len(value)} characters; {LONGEST_PATTERN} are allowed"
            yield from self._add("_patterns", 1, MOST_PATTERNS, "patterns")
            yield from self._add("_pattern_characters", len(value), PATTERNS_LIMIT, "characters of patterns")
        elif keyword == "default":
            size = len(json.dumps(value))
            if size > LARGEST_DEFAULT:
                yield f"the default has {size} bytes; {LARGEST_DEFAULT} are allowed"
            yield from self._add("_defaults", 1, MOST_DEFAULTS, "defaults")
            yield from self._add("_default_bytes", size, DEFAULTS_LIMIT, "bytes of defaults")
        elif keyword in _BRANCHING:
            branches = len(value) if keyword in _LISTED | _NAMED else 1
            yield from self._add("_branches", branches, MOST_BRANCHES, "branches (allOf, anyOf, $ref and the like)")

    def _add(self, counter: str, more: int, limit: int, what: str) -> Iterator[str]:
        before = getattr(self, counter)
        setattr(self, counter, before + more)
        if before <= limit < before + more:
            yield f"the schemas of this manifest have more than {limit} {what} from here on; use fewer, or shorter ones"


def walk(node: Any, pointer: str) -> Iterator[tuple[str, str, Any]]:
    """Yield each keyword of a schema and of those below it, with its place."""
    if not isinstance(node, Mapping):
        return
    for keyword, value in node.items():
        here = pointer + part_of(keyword)
        yield here, keyword, value
        if keyword in _NAMED:
            for name, child in value.items():
                yield from walk(child, here + part_of(name))
        elif keyword in _LISTED:
            for number, child in enumerate(value):
                yield from walk(child, here + part_of(number))
        elif keyword in _SINGLE:
            yield from walk(value, here)


def part_of(part: str | int) -> str:
    """Return one step of a JSON pointer."""
    return "/" + str(part).replace("~", "~0").replace("/", "~1")
