"""Lists of any length as async iterators; pages are fetched as they are needed."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Generic, Protocol, TypeVar

Item = TypeVar("Item")
ItemOut = TypeVar("ItemOut", covariant=True)


class PageOf(Protocol[ItemOut]):
    @property
    def items(self) -> Sequence[ItemOut]: ...

    @property
    def next_cursor(self) -> str | None: ...


class Pager(Generic[Item]):
    """`async for item in pager`, or `await pager.all()`."""

    def __init__(self, fetch: Callable[[str | None], Awaitable[PageOf[Item]]]) -> None:
        self._fetch = fetch

    async def pages(self) -> AsyncIterator[Sequence[Item]]:
        cursor: str | None = None
        while True:
            page = await self._fetch(cursor)
            yield page.items
            cursor = page.next_cursor
            if cursor is None:
                return

    async def __aiter__(self) -> AsyncIterator[Item]:
        async for items in self.pages():
            for item in items:
                yield item

    async def all(self) -> list[Item]:
        return [item async for item in self]
