"""Read a manifest from a file and report its problems by line and column."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from gpuaas_contract.manifest_rules import DEPTH_LIMIT, MANIFEST_LIMIT, find_problems

FILE_LIMIT = 2 * MANIFEST_LIMIT
"""Bytes of the text, with its comments and blanks."""
Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class FileProblem:
    file: str
    line: int
    column: int
    pointer: str
    message: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}: {self.message}"


class _Loader(yaml.SafeLoader):
    """Refuses aliases and deep nesting: they make a small file large, or hide its content."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            raise self._refusal("aliases (*name) are not allowed")
        self._depth += 1
        if self._depth > DEPTH_LIMIT:
            raise self._refusal(f"nested more than {DEPTH_LIMIT} levels deep")
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def _refusal(self, why: str) -> yaml.YAMLError:
        mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
        return yaml.composer.ComposerError(None, None, why, mark)


@dataclass
class _Reader:
    loader: _Loader
    keys: dict[str, Place]
    values: dict[str, Place]
    found: list[tuple[str, Place, str]]

    def read(self, node: yaml.Node, pointer: str) -> Any:
        self.values[pointer] = _place(node)
        if isinstance(node, yaml.MappingNode):
            return self._mapping(node, pointer)
        if isinstance(node, yaml.SequenceNode):
            return [self.read(child, f"{pointer}/{number}") for number, child in enumerate(node.value)]
        return self._scalar(node, pointer)

    def _mapping(self, node: yaml.MappingNode, pointer: str) -> dict[str, Any]:
        content: dict[str, Any] = {}
        for key_node, child in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                self.found.append((pointer, _place(key_node), "a key must be a plain word"))
                continue
            key = str(key_node.value)
            where = f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}"
            if key in content:
                first, _ = self.keys[where]
                self.found.append((where, _place(key_node), f"duplicate key {key!r}: first used in line {first}"))
                continue
            self.keys[where] = _place(key_node)
            content[key] = self.read(child, where)
        return content

    def _scalar(self, node: yaml.Node, pointer: str) -> Any:
        try:
            value = self.loader.construct_object(node)
        except (yaml.YAMLError, ValueError) as error:
            self.found.append((pointer, _place(node), str(getattr(error, "problem", None) or error)))
            return None
        if value is None or isinstance(value, bool | int | str):
            return value
        if isinstance(value, float) and value - value == 0:
            return value
        # JSON has no dates and no infinities: the text as written is meant.
        kind = type(value).__name__
        self.found.append((pointer, _place(node), f"put {node.value} in quotes: YAML reads it as a {kind}"))
        return str(node.value)


def _place(node: yaml.Node) -> Place:
    return node.start_mark.line + 1, node.start_mark.column + 1


def read_manifest(path: Path, check: Callable[[Any], list[Any]] = find_problems) -> tuple[Any, list[FileProblem]]:
    """Return the document and all its problems, in the order of the file."""
    name = str(path)
    if path.stat().st_size > FILE_LIMIT:
        return None, [FileProblem(name, 1, 1, "", f"the file is larger than {FILE_LIMIT} bytes")]
    try:
        loader = _Loader(path.read_text(encoding="utf-8"))
        node = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (1, 1)
        return None, [FileProblem(name, line, column, "", str(error.problem or error))]
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        return None, [FileProblem(name, 1, 1, "", f"not YAML text: {error}".replace("\n", " "))]
    if node is None:
        return None, [FileProblem(name, 1, 1, "", "the file is empty")]
    reader = _Reader(loader, {}, {}, [])
    document = reader.read(node, "")
    problems = [FileProblem(name, *place, pointer, message) for pointer, place, message in reader.found]
    for wrong in check(document):
        place = _find(reader, wrong.pointer, unknown="there is no field" in wrong.detail)
        problems.append(FileProblem(name, *place, wrong.pointer, wrong.detail))
    return document, sorted(problems, key=lambda problem: (problem.line, problem.column, problem.message))


def _find(reader: _Reader, pointer: str, *, unknown: bool) -> Place:
    """Return the position of a pointer; for a missing field, that of its parent."""
    if unknown and pointer in reader.keys:
        return reader.keys[pointer]
    while pointer and pointer not in reader.values:
        pointer = pointer.rpartition("/")[0]
        if pointer in reader.keys:
            return reader.keys[pointer]
    return reader.values.get(pointer, (1, 1))
