"""Cursors of lists: the last id of the page before, in a form that clients do not take apart."""

import base64
import binascii

from gpuaas_contract.problems import Code
from gpuaas_platform.domain.errors import Refusal
from gpuaas_platform.storage.database import Row

MAX_LIMIT = 500


def decode_cursor(cursor: str | None) -> str:
    """Return the id after which the page begins; the empty string sorts before all ids."""
    if cursor is None:
        return ""
    try:
        return base64.urlsafe_b64decode(cursor.encode("ascii")).decode("ascii")
    except (ValueError, binascii.Error, UnicodeError) as error:
        raise Refusal(Code.CURSOR_INVALID, "this cursor was not made by this list; start without one") from error


def cut_page(rows: list[Row], limit: int) -> tuple[list[Row], str | None]:
    """Lists ask for one row more than the page holds, to know whether there is a next one."""
    if len(rows) <= limit:
        return rows, None
    page = rows[:limit]
    return page, base64.urlsafe_b64encode(page[-1]["id"].encode()).decode()
