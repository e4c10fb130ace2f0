"""The context of a request: the caller, the correlation id, and one transaction."""

import hmac
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import asdict, dataclass
from typing import Annotated
from urllib.parse import parse_qsl, urlsplit

import psycopg
from fastapi import Depends, Query, Request, Response
from psycopg_pool import PoolTimeout
from starlette.requests import HTTPConnection

from gpuaas_contract.base import OwnedResource, Resource
from gpuaas_contract.problems import IDEMPOTENCY_HEADER, Code
from gpuaas_contract.sessions import CSRF_HEADER, SESSION_COOKIE
from gpuaas_platform.api.bodies import fingerprint_of
from gpuaas_platform.api.queries import check_query
from gpuaas_platform.api.routing import PERMISSION_ATTRIBUTE
from gpuaas_platform.catalogue.service.replays import require_again
from gpuaas_platform.core.checks import Verdicts
from gpuaas_platform.core.database import Transaction, request_fingerprint
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.core.idempotency import begin_request
from gpuaas_platform.core.outside import OutsideEffect
from gpuaas_platform.core.pages import MAX_LIMIT
from gpuaas_platform.identity.rules.policy import PEOPLE_ONLY, Caller, Permission
from gpuaas_platform.identity.service.principals import Authenticated, not_a_person, password_change_required
from gpuaas_platform.platform import Platform

KEY_LIMIT = 200
_READS = {"GET", "HEAD", "OPTIONS"}


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
    authenticated: Authenticated
    request: Request

    @property
    def session_id(self) -> str:
        """Of the present login. Routes that are for people only may ask."""
        assert self.authenticated.session_id is not None
        return self.authenticated.session_id

    def read(self) -> AbstractAsyncContextManager[Transaction]:
        """For looking only."""
        return self.platform.database.reading(self.caller.id, self.correlation_id)

    def write(self) -> AbstractAsyncContextManager[Transaction]:
        """For changes whose answer is not kept for an idempotency key; the others `mutate`."""
        return self.platform.database.transaction(self.caller.id, self.correlation_id)

    def show(self, resource: OwnedResource) -> Response:
        """One resource with its ETag; nothing but a 304 where the caller has it already."""
        tag = etag_of(resource)
        if self.request.headers.get("If-None-Match") == tag:
            return Response(status_code=304, headers={"ETag": tag})
        return Response(resource.model_dump_json(by_alias=True), 200, {"ETag": tag}, media_type="application/json")

    async def mutate(self, effect: Callable[[Transaction], Awaitable[Resource]], status: int = 200) -> Response:
        """Run an effect once per idempotency key: its answer is stored in the same transaction."""
        verdicts = Verdicts(self.platform.checks)

        async def attempt() -> Response:
            async with self.write() as tx:
                if (answer := await self._begin(tx)) is not None:
                    return answer
                tx.verdicts = verdicts
                return self._answer(tx, await effect(tx), status)

        return await verdicts.until_known(attempt)

    async def mutate_outside(self, effect: OutsideEffect, status: int = 200) -> Response:
        """The same for an effect outside of the database: its intent before it, its answer with its end."""
        async with self.write() as tx:
            if (answer := await self._begin(tx)) is not None:
                return answer
            if (resource := await effect.intend(tx)) is not None:
                return self._answer(tx, resource, status)
        try:
            await effect.act()
            return await self.mutate(effect.finish, status)
        except Exception:
            # Where the database is away, too, the sweeper does it.
            with suppress(psycopg.Error, PoolTimeout):
                async with self.write() as tx:
                    await effect.abandon(tx)
            raise

    async def _begin(self, tx: Transaction) -> Response | None:
        """Note what the request says about itself; return the first answer, where one with its key was answered."""
        key = self.request.headers.get(IDEMPOTENCY_HEADER)
        if key is not None and not 1 <= len(key) <= KEY_LIMIT:
            raise Refusal(Code.INVALID_REQUEST, f"{IDEMPOTENCY_HEADER} has between 1 and {KEY_LIMIT} characters")
        tx.expected_revision = _expected_revision(self.request)
        if key is None:
            return None
        tx.request_key = f"{tx.principal_id}/{key}"
        stored = await begin_request(tx, key)
        if not stored.held:
            raise Refusal(Code.IDEMPOTENCY_IN_FLIGHT, "the first request with this key is still running", retry_after=1)
        if stored.status is None:
            return None
        if stored.fingerprint != tx.fingerprint:
            raise Refusal(Code.IDEMPOTENCY_CONFLICT, "this key was used for another request; take a new one")
        await require_again(tx, self.caller, stored.rights)
        headers = {"Idempotency-Replayed": "true"}
        return Response(stored.body, stored.status, headers, media_type="application/json")

    def _answer(self, tx: Transaction, resource: Resource, status: int) -> Response:
        """Answer, and keep the answer for the request's key in the transaction of the effect."""
        body = resource.model_dump_json(by_alias=True)
        if (key := self.request.headers.get(IDEMPOTENCY_HEADER)) is not None:
            # What is shown once is not shown to whoever repeats the request, nor kept here.
            one_time = set(resource.ONE_TIME)
            kept = resource.model_dump_json(by_alias=True, exclude=one_time) if one_time else body
            tx.keep_answer(key, status, kept, [asdict(right) for right in self.caller.used])
        headers = {"ETag": etag_of(resource)} if isinstance(resource, OwnedResource) else {}
        if resource.ONE_TIME:
            headers["Cache-Control"] = "no-store"
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


async def authenticate(connection: HTTPConnection) -> Authenticated:
    """A bearer token, else a browser's cookie. The token comes first: who shows one means it."""
    platform = platform_of(connection)
    correlation_id = str(connection.state.correlation_id)
    cookie = connection.cookies.get(SESSION_COOKIE)
    if cookie and "authorization" not in connection.headers:
        return await platform.sessions.authenticate_cookie(cookie, correlation_id)
    return await platform.tokens.authenticate(bearer_of(connection), correlation_id)


def is_same_origin(connection: HTTPConnection) -> bool | None:
    """Whether the browser says that our own page makes this request; None where it says nothing."""
    site, origin = connection.headers.get("sec-fetch-site"), connection.headers.get("origin")
    if site is None and origin is None:
        return None
    if site is not None and site != "same-origin":
        return False
    own = {connection.headers.get("host"), urlsplit(platform_of(connection).oauth.public_url).netloc}
    return origin is None or (urlsplit(origin).netloc or "no origin") in own


def _check_csrf(request: Request, csrf_token: str, given: str) -> None:
    """A browser sends its cookie whichever page asks it to. Only our own page knows the token."""
    if not is_same_origin(request):
        raise Refusal(Code.CSRF_INVALID, "with a session cookie, changes come from this origin only", denied=True)
    if not hmac.compare_digest(given.encode(), csrf_token.encode()):
        detail = f"with a session cookie, changes need the session's token in {CSRF_HEADER}"
        raise Refusal(Code.CSRF_INVALID, detail, denied=True)


async def authenticated_context(request: Request) -> Context:
    return await _context_of(request, request.headers.get(CSRF_HEADER, ""))


Form = dict[str, str]
MOST_FIELDS = 10


async def form_of(request: Request) -> Form:
    """Read the form of a page without script. Fields that cannot be read as text are refused as a whole."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Refusal(Code.INVALID_REQUEST, "this page takes the forms that it shows, and nothing else")
    try:
        text = (await request.body()).decode("ascii")
        return dict(parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=MOST_FIELDS))
    except ValueError:
        raise Refusal(Code.INVALID_REQUEST, "the form cannot be read; open the page again") from None


async def page_context(request: Request) -> Context:
    """For a page's own forms, which send the session's token as a field: they have no header of their own."""
    sent = request.headers.get(CSRF_HEADER) or (await form_of(request)).get("csrf_token", "")
    return await _context_of(request, sent)


async def _context_of(request: Request, given_csrf_token: str) -> Context:
    platform = platform_of(request)
    authenticated = await authenticate(request)
    request.state.caller = authenticated.caller
    if request.method not in _READS:
        request_fingerprint.set(await fingerprint_of(request))
    platform.limits.requests.take(authenticated.caller.id)
    if authenticated.csrf_token is not None and request.method not in _READS:
        _check_csrf(request, authenticated.csrf_token, given_csrf_token)
    permission = getattr(request.scope["route"].endpoint, PERMISSION_ATTRIBUTE)
    if permission in PEOPLE_ONLY and authenticated.session_id is None:
        raise not_a_person()
    if authenticated.password_change_required and permission != Permission.OWN_LOGIN:
        raise password_change_required()
    check_query(request)
    await platform.presence.saw(authenticated.caller)
    return Context(platform, authenticated.caller, str(request.state.correlation_id), authenticated, request)


async def authenticated_agent(connection: HTTPConnection) -> Caller:
    platform = platform_of(connection)
    async with platform.database.system_transaction() as tx:
        return await platform.tokens.authenticate_agent(tx, bearer_of(connection))


Ctx = Annotated[Context, Depends(authenticated_context)]
PageCtx = Annotated[Context, Depends(page_context)]
Agent = Annotated[Caller, Depends(authenticated_agent)]
Limit = Annotated[int, Query(ge=1, le=MAX_LIMIT)]
"""How many items a page of a list holds at most."""


async def authenticated_context_of(connection: HTTPConnection) -> tuple[Caller, str]:
    """The caller and correlation id of a WebSocket upgrade. It has no CSRF token, so the page's origin must do."""
    authenticated = await authenticate(connection)
    if authenticated.csrf_token is not None and not is_same_origin(connection):
        raise Refusal(Code.CSRF_INVALID, "with a session cookie, streams come from this origin only")
    if authenticated.password_change_required:
        raise password_change_required()
    return authenticated.caller, str(connection.state.correlation_id)
