"""What a route works with: the caller, the correlation id, and one transaction per request."""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

from fastapi import Depends, Query, Request, Response
from starlette.requests import HTTPConnection

from gpuaas_contract.base import OwnedResource, Resource
from gpuaas_contract.problems import IDEMPOTENCY_HEADER, Code
from gpuaas_platform.domain.errors import Refusal
from gpuaas_platform.domain.policy import Caller
from gpuaas_platform.services.pages import MAX_LIMIT
from gpuaas_platform.services.platform import Platform
from gpuaas_platform.storage import changes as change_store
from gpuaas_platform.storage.database import Transaction

KEY_LIMIT = 200


def platform_of(connection: HTTPConnection) -> Platform:
    platform = connection.app.state.platform
    assert isinstance(platform, Platform)
    return platform


def bearer_of(connection: HTTPConnection) -> str:
    scheme, _, token = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not token:
        raise Refusal(Code.UNAUTHENTICATED, "log in first: this route needs an Authorization: Bearer token")
    return token.strip()


@dataclass(frozen=True, slots=True)
class Context:
    platform: Platform
    caller: Caller
    correlation_id: str
    token_expires_at: datetime
    request: Request

    @asynccontextmanager
    async def read(self) -> AsyncIterator[Transaction]:
        async with self.platform.database.transaction(self.caller.id, self.correlation_id) as tx:
            yield tx

    def show(self, resource: OwnedResource) -> Response:
        """One resource with its ETag; nothing but a 304 where the caller has it already."""
        tag = etag_of(resource)
        if self.request.headers.get("If-None-Match") == tag:
            return Response(status_code=304, headers={"ETag": tag})
        return Response(resource.model_dump_json(by_alias=True), 200, {"ETag": tag}, media_type="application/json")

    async def mutate(self, effect: Callable[[Transaction], Awaitable[Resource]], status: int = 200) -> Response:
        """Run an effect once per idempotency key: its answer is stored in the same transaction."""
        return await run_mutation(self.platform, self.request, self.caller.id, self.correlation_id, effect, status)


async def run_mutation(
    platform: Platform,
    request: Request,
    principal_id: str,
    correlation_id: str,
    effect: Callable[[Transaction], Awaitable[Resource]],
    status: int,
) -> Response:
    key = request.headers.get(IDEMPOTENCY_HEADER)
    if key is not None and not 1 <= len(key) <= KEY_LIMIT:
        raise Refusal(Code.INVALID_REQUEST, f"{IDEMPOTENCY_HEADER} has between 1 and {KEY_LIMIT} characters")
    async with platform.database.transaction(principal_id, correlation_id) as tx:
        tx.expected_revision = _expected_revision(request)
        tx.fingerprint = fingerprint = await fingerprint_of(request)
        if key is not None:
            if not await change_store.try_lock_key(tx, key):
                raise Refusal(
                    Code.IDEMPOTENCY_IN_FLIGHT, "the first request with this key is still running", retry_after=1
                )
            stored = await change_store.get_answer(tx, key)
            if stored is not None:
                if stored["fingerprint"] != fingerprint:
                    raise Refusal(Code.IDEMPOTENCY_CONFLICT, "this key was used for another request; take a new one")
                headers = {"Idempotency-Replayed": "true"}
                return Response(stored["body"], stored["status"], headers, media_type="application/json")
        resource = await effect(tx)
        body = resource.model_dump_json(by_alias=True)
        if key is not None:
            await change_store.store_answer(tx, key, fingerprint, status, body)
    headers = {"ETag": etag_of(resource)} if isinstance(resource, OwnedResource) else {}
    return Response(body, status, headers, media_type="application/json")


def etag_of(resource: OwnedResource) -> str:
    return f'"{resource.revision}"'


def _expected_revision(request: Request) -> int | None:
    given = request.headers.get("If-Match")
    if given is None or given == "*":
        return None
    try:
        return int(given.strip('"'))
    except ValueError:
        raise Refusal(Code.REVISION_MISMATCH, f"{given} is not an ETag of this platform") from None


async def fingerprint_of(request: Request) -> str:
    content = f"{request.method} {request.url.path}?{request.url.query}\n".encode() + await request.body()
    return hashlib.sha256(content).hexdigest()


async def authenticated_context(request: Request) -> Context:
    platform = platform_of(request)
    correlation_id = str(request.state.correlation_id)
    async with platform.database.system_transaction(correlation_id) as tx:
        authenticated = await platform.tokens.authenticate(tx, bearer_of(request))
    request.state.caller = authenticated.caller
    platform.limits.requests.take(authenticated.caller.id)
    return Context(platform, authenticated.caller, correlation_id, authenticated.expires_at, request)


async def authenticated_agent(connection: HTTPConnection) -> Caller:
    platform = platform_of(connection)
    async with platform.database.system_transaction() as tx:
        return await platform.tokens.authenticate_agent(tx, bearer_of(connection))


Ctx = Annotated[Context, Depends(authenticated_context)]
Agent = Annotated[Caller, Depends(authenticated_agent)]
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT)]
"""How many items a page of a list holds at most."""


async def authenticated_context_of(connection: HTTPConnection) -> tuple[Caller, str]:
    """The caller and correlation id of a WebSocket upgrade."""
    platform = platform_of(connection)
    correlation_id = str(connection.state.correlation_id)
    async with platform.database.system_transaction(correlation_id) as tx:
        authenticated = await platform.tokens.authenticate(tx, bearer_of(connection))
    return authenticated.caller, correlation_id
