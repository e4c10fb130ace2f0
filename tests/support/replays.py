"""Requests as they were sent, to be sent again word for word by a caller who has lost every right."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx
import psycopg
import pytest
from fastapi import FastAPI
from starlette.routing import Match

from gpuaas_contract.problems import IDEMPOTENCY_HEADER
from gpuaas_platform.api.routing import permission_of
from gpuaas_platform.identity.rules.policy import Permission

OWN = {Permission.PERSON, Permission.OWN_LOGIN, Permission.AGENT, Permission.ANONYMOUS}
"""Permissions that need no right but to be who one is."""


@dataclass(frozen=True)
class SentRequest:
    operation_id: str
    permission: Permission
    method: str
    url: str
    headers: dict[str, str]
    content: bytes

    @property
    def key(self) -> str:
        return self.headers[IDEMPOTENCY_HEADER.lower()]


class Recorder:
    """Remembers every request with an idempotency key that this process sends from now on."""

    def __init__(self, app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sent: list[SentRequest] = []
        self._routes = [route for route in app.routes if hasattr(route, "endpoint")]
        send = httpx.AsyncHTTPTransport.handle_async_request

        async def record(transport: httpx.AsyncHTTPTransport, request: httpx.Request) -> httpx.Response:
            if IDEMPOTENCY_HEADER in request.headers:
                self._note(request)
            return await send(transport, request)

        monkeypatch.setattr(httpx.AsyncHTTPTransport, "handle_async_request", record)

    def _note(self, request: httpx.Request) -> None:
        scope = {"type": "http", "method": request.method, "path": request.url.path, "root_path": ""}
        route = next(route for route in self._routes if route.matches(scope)[0] == Match.FULL)
        found = SentRequest(
            route.name,  # type: ignore[attr-defined]
            permission_of(route),  # type: ignore[arg-type]
            request.method,
            str(request.url),
            dict(request.headers),
            request.content,
        )
        self.sent.append(found)

    def kept(self, connection: psycopg.Connection) -> list[SentRequest]:
        """Those whose answers the platform keeps for whoever repeats them."""
        keys = {key for (key,) in connection.execute("SELECT key FROM idempotency_keys")}
        return [request for request in self.sent if request.key in keys]


async def send_again(http: httpx.AsyncClient, request: SentRequest) -> httpx.Response:
    return await http.request(request.method, request.url, headers=request.headers, content=request.content)


@contextmanager
def without_rights(connection: psycopg.Connection) -> Iterator[None]:
    """Take every role from every person, and give every account of an app to an app that has nothing."""
    for sql in (
        "CREATE TEMP TABLE held AS SELECT * FROM memberships",
        "CREATE TEMP TABLE bound AS SELECT id, app_slug FROM service_accounts",
        "DELETE FROM memberships",
        "UPDATE service_accounts SET app_slug = 'nothing-of-the-kind' WHERE app_slug IS NOT NULL",
    ):
        connection.execute(sql.encode())
    try:
        yield
    finally:
        connection.execute(b"INSERT INTO memberships SELECT * FROM held")
        connection.execute(b"UPDATE service_accounts s SET app_slug = b.app_slug FROM bound b WHERE b.id = s.id")
