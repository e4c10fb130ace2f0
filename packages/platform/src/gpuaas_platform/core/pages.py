"""Cursors of lists: where the page before ended, in a form that clients do not take apart."""

import base64
import binascii
import hashlib
from contextvars import ContextVar
from typing import TypeVar

from gpuaas_contract.problems import Code
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.core.records import Identified

R = TypeVar("R", bound=Identified)
MAX_LIMIT = 500
_TAG_LENGTH = 8
current_list: ContextVar[str] = ContextVar("current_list", default="")
"""The path of the list that is being read. A cursor carries its mark, so that no other list takes it."""


def encode_cursor(position: str) -> str:
    return base64.urlsafe_b64encode(f"{_tag()}{position}".encode()).decode()


def decode_cursor(cursor: str | None) -> str:
    """Return the position after which the page begins; the empty string sorts before all ids."""
    if cursor is None:
        return ""
    try:
        text = base64.urlsafe_b64decode(cursor.encode("ascii")).decode("ascii")
    except (ValueError, binascii.Error, UnicodeError) as error:
        raise foreign_cursor() from error
    if text[:_TAG_LENGTH] != _tag():
        raise foreign_cursor()
    return text[_TAG_LENGTH:]


def _tag() -> str:
    return hashlib.sha256(current_list.get().encode()).hexdigest()[:_TAG_LENGTH]


def foreign_cursor() -> Refusal:
    return Refusal(Code.CURSOR_INVALID, "this cursor was not made by this list; start without one")


def cut_page(rows: list[R], limit: int) -> tuple[list[R], str | None]:
    """Lists ask for one row more than the page holds, to know whether there is a next one."""
    if len(rows) <= limit:
        return rows, None
    page = rows[:limit]
    return page, encode_cursor(page[-1].id)
