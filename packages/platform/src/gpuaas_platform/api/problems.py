"""Every failure as problem+json."""

from functools import partial

import psycopg
import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, Response
from fastapi.routing import APIRoute
from psycopg_pool import PoolTimeout
from starlette.exceptions import HTTPException
from starlette.routing import Match

from gpuaas_contract.audit import AuditOutcome
from gpuaas_contract.base import API_PREFIX
from gpuaas_contract.problems import PROBLEM_MEDIA_TYPE, Code, FieldError, Problem
from gpuaas_platform.accounts.rules import device_page
from gpuaas_platform.api.next_actions import actions_after
from gpuaas_platform.api.routing import permission_of
from gpuaas_platform.core.errors import LONGEST, MOST_ERRORS, Refusal
from gpuaas_platform.identity.rules.policy import POLICY, Caller, Permission
from gpuaas_platform.operations.routes.report_refusals import tell_of_report
from gpuaas_platform.platform import Platform

log = structlog.get_logger()

# RFC 6749 clients read `error` and `error_description`: the OAuth routes say it in their words as well.
OAUTH_ROUTES = {f"{API_PREFIX}/oauth/{name}" for name in ("token", "revoke", "device_authorization")}
_TOKEN_ROUTE = f"{API_PREFIX}/oauth/token"
_OAUTH_ERRORS = {
    Code.INVALID_REQUEST: "invalid_request",
    Code.UNAUTHENTICATED: "invalid_client",
    Code.INVALID_CREDENTIALS: "invalid_client",
    Code.UNAVAILABLE: "temporarily_unavailable",
    Code.RATE_LIMITED: "temporarily_unavailable",
    # OAuth's own codes are the only ones with this status.
    **{code: code.value for code in Code if code.status == 400},
}

_FRAMEWORK_CODES = {code.status: code for code in (Code.NOT_FOUND, Code.METHOD_NOT_ALLOWED, Code.TOO_LARGE)}


def problem_of(refusal: Refusal, correlation_id: str) -> Problem:
    return Problem(
        type=f"https://gpuaas.invalid/problems/{refusal.code.value}",
        title=refusal.code.problem_title,
        status=refusal.status,
        detail=refusal.detail,
        code=refusal.code,
        correlation_id=correlation_id,
        retryable=refusal.retryable,
        errors=refusal.errors,
        allowed_actions=refusal.allowed_actions,
        context=refusal.context,
    )


def problem_response(refusal: Refusal, correlation_id: str) -> JSONResponse:
    headers = {"Retry-After": str(refusal.retry_after)} if refusal.retry_after else None
    if refusal.status == 401:
        headers = {"WWW-Authenticate": "Bearer"}
    body = problem_of(refusal, correlation_id).model_dump(mode="json")
    return JSONResponse(body, refusal.status, headers, media_type=PROBLEM_MEDIA_TYPE)


def _may_call(request: Request, method: str, href: str) -> bool:
    """Whether there is such a route, and the caller of the request has any role that may call it."""
    caller: Caller | None = getattr(request.state, "caller", None)
    scope = {"type": "http", "method": method, "path": href, "root_path": "", "headers": []}
    for route in request.app.routes:
        if isinstance(route, APIRoute) and route.matches(scope)[0] is Match.FULL:
            permission = permission_of(route)
            if permission == Permission.ANONYMOUS:
                return True
            roles = POLICY.get(permission)
            return caller is not None and (roles is None or any(grant.role in roles for grant in caller.grants))
    return False


def _answer(request: Request, refusal: Refusal) -> Response:
    if request.url.path in device_page.PATHS:
        return page_response(refusal, _correlation_id(request))
    if not refusal.allowed_actions:
        may_call = partial(_may_call, request)
        refusal.allowed_actions = actions_after(refusal.code, request.method, request.url.path, may_call)
    response = problem_response(refusal, _correlation_id(request))
    if response.status_code == 401 and (challenge := getattr(request.state, "challenge", None)):
        response.headers["WWW-Authenticate"] = challenge
    return _in_oauth_words(request, refusal, response) if request.url.path in OAUTH_ROUTES else response


def page_response(refusal: Refusal, correlation_id: str) -> Response:
    """For a person in front of a browser."""
    wait = {"Retry-After": str(refusal.retry_after)} if refusal.retry_after else {}
    html = device_page.problem_page(refusal.code.problem_title, refusal.detail, correlation_id)
    return HTMLResponse(html, refusal.status, {**device_page.HEADERS, **wait})


def _in_oauth_words(request: Request, refusal: Refusal, response: JSONResponse) -> JSONResponse:
    """The problem stays whole: OAuth's members are added to it."""
    status = 400 if refusal.status == 422 else refusal.status
    body = problem_of(refusal, _correlation_id(request)).model_dump(mode="json") | {
        "status": status,
        "error": _OAUTH_ERRORS.get(refusal.code, "invalid_request"),
        "error_description": refusal.detail,
    }
    headers = {name: value for name in ("Retry-After",) if (value := response.headers.get(name))}
    if status == 401:
        headers["WWW-Authenticate"] = "Basic"
    media_type = "application/json" if request.url.path == _TOKEN_ROUTE else PROBLEM_MEDIA_TYPE
    return JSONResponse(body, status, {**headers, "Cache-Control": "no-store"}, media_type=media_type)


def internal_error() -> Refusal:
    return Refusal(
        Code.INTERNAL, "something went wrong on our side; the operator finds it in the log by the correlation id"
    )


async def _audit_denial(request: Request, error: Refusal) -> None:
    """Only known principals get this far: what nobody in particular tries is counted, not written down."""
    caller: Caller = request.state.caller
    platform: Platform = request.app.state.platform
    action = getattr(request.scope["route"].endpoint, "__name__", request.method)
    async with platform.database.transaction(caller.id, _correlation_id(request)) as tx:
        detail = {"path": request.url.path, "reason": error.detail}
        await tx.audit(action, request.url.path, outcome=AuditOutcome.DENIED, detail=detail)


def _correlation_id(request: Request) -> str:
    return str(request.state.correlation_id)


def install_handlers(app: FastAPI) -> None:
    @app.exception_handler(Refusal)
    async def refused(request: Request, error: Refusal) -> Response:
        if error.denied and request.method not in {"GET", "HEAD"}:
            await _audit_denial(request, error)
        await tell_of_report(request, error)
        return _answer(request, error)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        found = error.errors()[:MOST_ERRORS]
        fields = [FieldError(pointer=_pointer(item["loc"]), detail=str(item["msg"])[:LONGEST]) for item in found]
        detail = "; ".join(f"{field.pointer}: {field.detail}" for field in fields)
        refusal = Refusal(Code.INVALID_REQUEST, f"the request is not valid: {detail}", errors=fields)
        await tell_of_report(request, refusal)
        return _answer(request, refusal)

    @app.exception_handler(HTTPException)
    async def framework(request: Request, error: HTTPException) -> Response:
        if isinstance(error.__cause__, Refusal):
            # Ours, raised while the framework read the body: it wraps whatever happens there.
            await tell_of_report(request, error.__cause__)
            return _answer(request, error.__cause__)
        code = _FRAMEWORK_CODES.get(error.status_code, Code.INVALID_REQUEST)
        if code == Code.NOT_FOUND:
            detail = f"there is no route {request.method} {request.url.path}"
        else:
            detail = str(error.detail)
        return _answer(request, Refusal(code, detail))

    @app.exception_handler(psycopg.DataError)
    @app.exception_handler(UnicodeEncodeError)
    async def unstorable(request: Request, error: Exception) -> Response:
        refusal = Refusal(Code.INVALID_REQUEST, "a value cannot be stored as text (a NUL character, for example)")
        log.info("unstorable", error=type(error).__name__)
        return _answer(request, refusal)

    @app.exception_handler(psycopg.errors.ForeignKeyViolation)
    async def gone_meanwhile(request: Request, error: psycopg.errors.ForeignKeyViolation) -> Response:
        log.info("gone_meanwhile", error=str(error))
        return _answer(request, Refusal(Code.INVALID_STATE, "what this belongs to was deleted at the same moment"))

    @app.exception_handler(psycopg.OperationalError)
    @app.exception_handler(psycopg.InterfaceError)
    @app.exception_handler(PoolTimeout)
    async def database_away(request: Request, error: Exception) -> Response:
        log.warning("database_away", error=str(error))
        request.app.state.platform.database.distrust()
        refusal = Refusal(Code.UNAVAILABLE, "the database does not answer; try again", retry_after=2)
        return _answer(request, refusal)


def _pointer(location: tuple[int | str, ...]) -> str:
    where, *path = location
    pointer = "".join(f"/{part}" for part in path) or "/" if where == "body" else "/".join(map(str, location))
    # A field's name may be anything that a client thinks of, also what cannot be sent back.
    return pointer[:LONGEST].encode(errors="replace").decode()
