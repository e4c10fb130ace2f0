"""The base of all resources."""

from typing import TypeVar, cast

from pydantic import BaseModel

from gpuaas_sdk.pages import PageOf, Pager
from gpuaas_sdk.transport import Query, Transport

Item = TypeVar("Item")


class ResourceRoutes:
    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    def _list(
        self, path: str, page: type[PageOf[Item]], query: Query | None = None, *, limit: int | None = None
    ) -> Pager[Item]:
        """`limit` is the size of a page, not of the list."""
        model = cast(type[BaseModel], page)

        async def fetch(cursor: str | None) -> PageOf[Item]:
            answer = await self._transport.get(path, model, {**(query or {}), "limit": limit, "cursor": cursor})
            return cast(PageOf[Item], answer)

        return Pager(fetch)
