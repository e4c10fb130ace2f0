"""Around every request: one correlation id, a limit on the body, one log line, one count, and never a stack trace."""

import re
import secrets
import time
from urllib.parse import urlsplit

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpuaas_contract import ids
from gpuaas_contract.problems import CORRELATION_HEADER, Code
from gpuaas_contract.trust import is_loopback
from gpuaas_platform.api.problems import internal_error, problem_response
from gpuaas_platform.api.routing import SERVICE_ATTRIBUTE
from gpuaas_platform.core.database import touched
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.core.origins import (
    PLATFORM_SERVICE,
    Origin,
    client_address,
    current_origin,
    is_proxy,
    readable_user_agent,
)
from gpuaas_platform.core.pages import current_list
from gpuaas_platform.observability.metrics import Metrics

log = structlog.get_logger()
_CORRELATION_ID = re.compile(r"^[A-Za-z0-9._:-]{8,64}$")
_TRACEPARENT = re.compile(r"^00-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-([0-9a-f]{2})$")
BODY_LIMIT = 2 * 1024 * 1024
"""Files go to the registry, past this process."""
HSTS = "max-age=31536000"
"""A year, over TLS only. Never for loopback names, which other programs on a person's machine serve without it."""


class RequestMiddleware:
    def __init__(self, app: ASGIApp, metrics: Metrics) -> None:
        self._app = app
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        answer_headers, correlation_id = _correlate(headers)
        scope["scheme"] = _scheme_of(scope, headers)
        if scope["scheme"] in {"https", "wss"} and not is_loopback(host_of(headers)):
            answer_headers["Strict-Transport-Security"] = HSTS
        scope.setdefault("state", {})["correlation_id"] = correlation_id
        structlog.contextvars.bind_contextvars(correlation_id=correlation_id)
        current_list.set(scope["path"])
        current_origin.set(_origin_of(scope, headers))
        place: dict[str, str | None] = {}
        touched.set(place)
        started, status = time.perf_counter(), 0
        self._metrics.in_flight.inc()

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] in {"http.response.start", "websocket.http.response.start"}:
                status = message["status"]
                MutableHeaders(scope=message).update(answer_headers)
            elif message["type"] == "websocket.accept":
                status = 101
            await send(message)

        try:
            if scope["type"] == "http":
                receive = _limited(receive, headers.get("content-length", ""))
            await self._app(scope, receive, send_with_headers)
        except Refusal as refusal:
            await problem_response(refusal, correlation_id)(scope, receive, send_with_headers)
        except Exception:
            log.exception("unexpected_error", path=scope["path"])
            if scope["type"] == "http" and status == 0:
                await problem_response(internal_error(), correlation_id)(scope, receive, send_with_headers)
        finally:
            self._note(scope, status, time.perf_counter() - started, place)
            structlog.contextvars.clear_contextvars()

    def _note(self, scope: Scope, status: int, seconds: float, place: dict[str, str | None]) -> None:
        method = scope.get("method", "WS")
        self._remember(scope, method, status, seconds, place)
        # A path that no route matches is anybody's invention, and must not become a label.
        route = getattr(scope.get("route"), "path", "unmatched")
        self._metrics.in_flight.dec()
        self._metrics.answered(method, route, status, seconds)
        log.info("request", method=method, path=scope["path"], status=status, ms=round(seconds * 1000, 1))

    @staticmethod
    def _remember(scope: Scope, method: str, status: int, seconds: float, place: dict[str, str | None]) -> None:
        platform = getattr(scope["app"].state, "platform", None) if "app" in scope else None
        if platform is None or method == "WS":
            return
        state, route = scope["state"], getattr(scope.get("route"), "path", None)
        caller = state.get("caller")
        principal = None if caller is None else caller.id
        platform.request_log.note(method, route, status, seconds, principal, state["correlation_id"], place)


def _origin_of(scope: Scope, headers: Headers) -> Origin:
    peer = (scope.get("client") or (None,))[0]
    proxies = scope["app"].state.platform.trusted_proxies
    return Origin(
        client_address(peer, headers.getlist("x-forwarded-for"), proxies),
        readable_user_agent(headers.get("user-agent", "")),
        lambda: getattr(getattr(scope.get("route"), "endpoint", None), SERVICE_ATTRIBUTE, PLATFORM_SERVICE),
    )


def _correlate(headers: Headers) -> tuple[dict[str, str], str]:
    """The caller's correlation id, else its trace id, else a new one; and what the answer carries of both."""
    given = headers.get(CORRELATION_HEADER, "")
    trace = _TRACEPARENT.match(headers.get("traceparent", ""))
    if _CORRELATION_ID.match(given):
        correlation_id = given
    elif trace is not None:
        correlation_id = trace[1]
    else:
        correlation_id = ids.new_id(ids.CORRELATION)
    answer = {CORRELATION_HEADER: correlation_id}
    if trace is not None:
        answer["traceparent"] = f"00-{trace[1]}-{secrets.token_hex(8)}-{trace[2]}"
        structlog.contextvars.bind_contextvars(trace_id=trace[1])
    return answer, correlation_id


def _scheme_of(scope: Scope, headers: Headers) -> str:
    """How the client speaks with us: a proxy that is trusted says so where it has the certificate."""
    own: str = scope.get("scheme", "http")
    said, peer = headers.get("x-forwarded-proto", "").strip().lower(), (scope.get("client") or ("",))[0]
    if said not in {"http", "https"} or not is_proxy(peer, scope["app"].state.platform.trusted_proxies):
        return own
    return said if scope["type"] == "http" else said.replace("http", "ws")


def host_of(headers: Headers) -> str:
    """The name that the client asked for, without its port."""
    try:
        return urlsplit(f"//{headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


def _limited(receive: Receive, announced: str) -> Receive:
    """A body past the limit is refused as soon as anybody wants to read it: announced as such, or counted."""
    too_much = announced.isdigit() and int(announced) > BODY_LIMIT
    received = 0

    async def counted() -> Message:
        nonlocal received
        if too_much:
            raise _too_large()
        message = await receive()
        received += len(message.get("body", b""))
        if received > BODY_LIMIT:
            raise _too_large()
        return message

    return counted


def _too_large() -> Refusal:
    return Refusal(Code.TOO_LARGE, f"a request body has at most {BODY_LIMIT} bytes")
