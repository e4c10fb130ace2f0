"""Records: rows of the database as frozen, typed objects.

Each noun declares its records in one place, `records.py` of its room, as frozen dataclasses. Storage returns them, and
nothing above storage handles a row. A column that a record does not declare is left out, so that a program goes on
serving while a newer one has added columns; a declared column that is missing is an error.
"""

import dataclasses
import types
import typing
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache
from typing import Any, TypeVar

from psycopg import AsyncCursor
from psycopg.rows import RowMaker
from pydantic import BaseModel, TypeAdapter

R = TypeVar("R", bound="Record")
M = TypeVar("M", bound=BaseModel)
Convert = Callable[[Any], Any]
Plan = Sequence[tuple[str, int, Convert | None]]
"""For each field of a record: the place of its column, and how the value is converted."""


class Record(Mapping[str, Any]):
    """One row. Subclasses are dataclasses, frozen and with slots.

    It is a mapping as long as there are rooms that read rows by the names of columns."""

    __slots__ = ()

    def __getitem__(self, name: str) -> Any:
        if name not in field_names(type(self)):
            raise KeyError(name)
        return getattr(self, name)

    def __iter__(self) -> Iterator[str]:
        return iter(field_names(type(self)))

    def __len__(self) -> int:
        return len(field_names(type(self)))


@cache
def field_names(record: type[Any]) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(record))


def record_row(record: type[R]) -> Callable[[AsyncCursor[Any]], RowMaker[R]]:
    """Make records of a class from the rows of a cursor."""

    def factory(cursor: AsyncCursor[Any]) -> RowMaker[R]:
        plan = _plan(record, tuple(column.name for column in cursor.description or ()))
        return lambda values: _make(record, plan, values)

    return factory


def from_document(record: type[R], document: Mapping[str, Any]) -> R:
    """Make a record from an object that the database made of columns."""
    return _make(record, _plan(record, tuple(document)), list(document.values()))


def to_wire(model: type[M], record: Record, **more: Any) -> M:
    """Make an answer of the API from a record, and from what only the API knows."""
    names = [name for name in field_names(type(record)) if name in model.model_fields]
    return model.model_validate({name: getattr(record, name) for name in names} | more)


def _make(record: type[R], plan: Plan, values: Sequence[Any]) -> R:
    return record(**{name: convert(values[place]) if convert else values[place] for name, place, convert in plan})


@cache
def _plan(record: type[Any], columns: tuple[str, ...]) -> Plan:
    places = {name: place for place, name in enumerate(columns)}
    hints = typing.get_type_hints(record).items()
    return [(name, places[name], _converter(hint)) for name, hint in hints if name in places]


def _converter(hint: Any) -> Convert | None:
    """Choose how a value of the database becomes one of this type; None where it is one already."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        present = [_converter(argument) for argument in arguments if argument is not types.NoneType]
        return _unless_none(present[0]) if len(present) == 1 else None
    if origin is tuple:
        if isinstance(arguments[0], type) and issubclass(arguments[0], BaseModel):
            return TypeAdapter(hint).validate_python  # Twice as fast as one after the other.
        return _of_each(_converter(arguments[0]))
    if not isinstance(hint, type):
        return None
    if issubclass(hint, Enum):
        return hint
    if issubclass(hint, BaseModel):
        return hint.model_validate
    if issubclass(hint, Record):
        return lambda value: from_document(hint, value)
    return None


def _unless_none(convert: Convert | None) -> Convert | None:
    return None if convert is None else lambda value: None if value is None else convert(value)


def _of_each(convert: Convert | None) -> Convert:
    return tuple if convert is None else lambda values: tuple(convert(value) for value in values)
