"""Records: rows of the database as frozen, typed objects.

A noun declares its records in `records.py` of its room, as frozen dataclasses. Storage returns them, and nothing above
storage handles a row. A column that a record does not declare is left out, so that a program goes on serving while a
newer one has added columns; a declared column that is missing is an error, and so is a value that an enumeration of the
program does not know.
"""

import dataclasses
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, ClassVar, Protocol, TypeVar

from psycopg import AsyncCursor
from psycopg.rows import RowMaker
from pydantic import BaseModel, TypeAdapter

R = TypeVar("R", bound="Record")
M = TypeVar("M", bound=BaseModel)
Convert = Callable[[Any], Any]
Plan = Sequence[tuple[str, int, Convert | None]]
"""For each field of a record: the place of its column, and how the value is converted."""


class Record:
    """One row. Subclasses are dataclasses, frozen and with slots."""

    __slots__ = ()
    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @classmethod
    def field_names(cls) -> tuple[str, ...]:
        return tuple(cls.__dataclass_fields__)


class Identified(Protocol):
    @property
    def id(self) -> str: ...


class Revised(Identified, Protocol):
    """A thing whose changes are counted, so that they can be told in the feed, and asked for by `If-Match`."""

    @property
    def revision(self) -> int: ...


@dataclasses.dataclass(frozen=True, slots=True)
class Subject:
    """The subject of a change that no single row stands for."""

    id: str
    revision: int


class Owned(Identified, Protocol):
    """A thing of a project, or of a tenant itself."""

    @property
    def tenant_id(self) -> str: ...

    @property
    def project_id(self) -> str | None: ...


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
    names = [name for name in record.field_names() if name in model.model_fields]
    return model.model_validate({name: getattr(record, name) for name in names} | more)


def _make(record: type[R], plan: Plan, values: Sequence[Any]) -> R:
    return record(**{name: convert(values[place]) if convert else values[place] for name, place, convert in plan})


_PLANS: dict[tuple[type[Record], tuple[str, ...]], Plan] = {}


def _plan(record: type[Record], columns: tuple[str, ...]) -> Plan:
    """Match the fields of a record with columns; worked out once for each statement's columns."""
    known = _PLANS.get((record, columns))
    if known is None:
        places = {name: place for place, name in enumerate(columns)}
        hints = typing.get_type_hints(record).items()
        known = [(name, places[name], _converter(hint)) for name, hint in hints if name in places]
        _PLANS[record, columns] = known
    return known


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
