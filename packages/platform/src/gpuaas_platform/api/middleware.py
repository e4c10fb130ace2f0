"""One correlation id per request: on the response, in every log line, in what the request causes."""

import re
import time

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpuaas_contract import ids
from gpuaas_contract.problems import CORRELATION_HEADER
from gpuaas_platform.api.problems import internal_error, problem_response

log = structlog.get_logger()
_ACCEPTABLE = re.compile(r"^[A-Za-z0-9._:-]{8,64}$")


class CorrelationMiddleware:
    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in {"http", "websocket"}:
            await self._app(scope, receive, send)
            return
        given = Headers(scope=scope).get(CORRELATION_HEADER, "")
        correlation_id = given if _ACCEPTABLE.match(given) else ids.new_id(ids.CORRELATION)
        scope.setdefault("state", {})["correlation_id"] = correlation_id
        structlog.contextvars.bind_contextvars(correlation_id=correlation_id)
        started, status = time.perf_counter(), 0

        async def send_with_header(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[CORRELATION_HEADER] = correlation_id
            await send(message)

        try:
            await self._app(scope, receive, send_with_header)
        except Exception:
            log.exception("unexpected_error", path=scope["path"])
            if scope["type"] == "http" and status == 0:
                response = problem_response(internal_error(), correlation_id)
                await response(scope, receive, send_with_header)
        finally:
            milliseconds = round((time.perf_counter() - started) * 1000, 1)
            log.info("request", method=scope.get("method", "WS"), path=scope["path"], status=status, ms=milliseconds)
            structlog.contextvars.clear_contextvars()
