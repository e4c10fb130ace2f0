"""Server-sent events, as far as the platform sends them."""

from collections.abc import AsyncGenerator, AsyncIterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Event:
    name: str
    data: str
    id: str | None
    """The newest id so far. An event without data only moves it."""


async def parse_events(lines: AsyncIterator[str]) -> AsyncGenerator[Event, None]:
    """Also what has an id and no data is handed out: it says where the stream is. Half an event at the end of a
    cut connection is dropped, and its id with it."""
    name, moved = "", False
    data: list[str] = []
    id: str | None = None
    last_id: str | None = None
    async for line in lines:
        if not line:
            if moved:
                last_id = id
            if data or moved:
                yield Event(name or "message", "\n".join(data), last_id)
            name, data, moved = "", [], False
            continue
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "event":
            name = value
        elif field == "data":
            data.append(value)
        elif field == "id":
            id, moved = value, True
