"""Records are made of rows by name, with their types, and become answers of the API."""

from dataclasses import FrozenInstanceError, dataclass
from enum import StrEnum
from types import SimpleNamespace
from typing import Any, cast

import pytest
from psycopg import AsyncCursor
from pydantic import BaseModel

from gpuaas_platform.core.records import Record, record_row, to_wire


class Colour(StrEnum):
    RED = "red"
    BLUE = "blue"


class Size(BaseModel):
    height: int


@dataclass(frozen=True, slots=True)
class Wheel(Record):
    name: str
    colour: Colour


@dataclass(frozen=True, slots=True)
class Cart(Record):
    id: str
    colour: Colour
    size: Size | None
    wheels: tuple[Wheel, ...] = ()


@dataclass(frozen=True, slots=True)
class Load(Record):
    boxes: tuple[Size, ...]


class CartAnswer(BaseModel):
    id: str
    colour: Colour
    allowed: list[str]


def read(record: type[Record], **columns: Any) -> Any:
    cursor = SimpleNamespace(description=[SimpleNamespace(name=name) for name in columns])
    return record_row(record)(cast(AsyncCursor[Any], cursor))(list(columns.values()))


def test_columns_become_the_types_of_the_fields() -> None:
    cart = read(Cart, size={"height": 3}, wheels=[{"colour": "blue", "name": "left"}], colour="red", id="c1")
    assert cart == Cart("c1", Colour.RED, Size(height=3), (Wheel("left", Colour.BLUE),))
    assert isinstance(cart.colour, Colour)


def test_a_list_of_models_becomes_a_tuple_of_them() -> None:
    assert read(Load, boxes=[{"height": 1}, {"height": 2}]) == Load((Size(height=1), Size(height=2)))


def test_null_stays_none_where_a_field_allows_it() -> None:
    assert read(Cart, id="c1", colour="red", size=None).size is None


def test_a_column_that_no_field_declares_is_left_out() -> None:
    assert read(Cart, id="c1", colour="red", size=None, added_later=1) == Cart("c1", Colour.RED, None)


def test_a_missing_column_is_an_error() -> None:
    with pytest.raises(TypeError, match="colour"):
        read(Cart, id="c1", size=None)


def test_a_value_that_the_type_does_not_know_is_an_error() -> None:
    with pytest.raises(ValueError, match="green"):
        read(Cart, id="c1", colour="green", size=None)


def test_records_do_not_change() -> None:
    cart = Cart("c1", Colour.RED, None)
    with pytest.raises(FrozenInstanceError):
        cart.id = "c2"  # type: ignore[misc]


def test_an_answer_takes_what_it_knows_of_the_record() -> None:
    answer = to_wire(CartAnswer, Cart("c1", Colour.RED, Size(height=3)), allowed=["push"])
    assert answer == CartAnswer(id="c1", colour=Colour.RED, allowed=["push"])
