"""Logging in and out, and one's own logins."""

from urllib.parse import urlsplit

from fastapi import Request, Response

from gpuaas_contract.identity import LoginRequest, Token
from gpuaas_contract.problems import Code
from gpuaas_contract.sessions import SESSION_COOKIE, CurrentSession, Session, SessionPage
from gpuaas_contract.trust import is_loopback
from gpuaas_platform.accounts.service import sessions
from gpuaas_platform.api.context import Ctx, Limit, is_same_origin, platform_of
from gpuaas_platform.api.middleware import host_of
from gpuaas_platform.api.routing import Routes
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.identity.rules.policy import Permission

routes = Routes("sessions")


def set_cookie(response: Response, value: str) -> None:
    """`__Host-`: this host only, no subdomain can set it. No script reads it. Without a value it goes."""
    response.set_cookie(
        SESSION_COOKIE,
        value,
        max_age=None if value else 0,
        path="/",
        secure=True,
        httponly=True,
        samesite="lax",
    )


def require_own_page(request: Request) -> None:
    """Or a foreign page could log its visitor in as somebody else."""
    if is_same_origin(request) is False:
        raise Refusal(Code.CSRF_INVALID, "log in from a page of this origin")


def require_cookies_kept(request: Request) -> None:
    """Refuse where the browser would drop the cookie without a word: it is `Secure`, and this is plain HTTP."""
    host = host_of(request.headers)
    public = urlsplit(platform_of(request).oauth.public_url)
    behind_tls = public.scheme == "https" and public.hostname == host
    if request.url.scheme == "https" or is_loopback(host) or behind_tls:
        return
    raise Refusal(
        Code.HTTPS_REQUIRED,
        f"a browser keeps no session with {host or 'this address'} over plain http, since the session's cookie is for "
        "https only. Open the https address. Whoever runs the platform turns TLS on with GPUAAS_TLS; behind a proxy "
        "that has the certificate, GPUAAS_PUBLIC_URL names the https address, or the proxy is one of "
        "GPUAAS_TRUSTED_PROXIES and sends X-Forwarded-Proto",
    )


def client_of(request: Request) -> str:
    return request.headers.get("user-agent", "")


@routes.post("/auth/login", Permission.ANONYMOUS, response_model=Token, response_model_exclude_none=True)
async def log_in(request: Request, response: Response, body: LoginRequest) -> Token:
    """A bearer token for a command line without a browser."""
    platform = platform_of(request)
    response.headers["Cache-Control"] = "no-store"
    return await platform.sessions.log_in_for_token(body, client_of(request), request.state.correlation_id)


@routes.post("/auth/session", Permission.ANONYMOUS, status_code=201, response_model=CurrentSession)
async def open_session(request: Request, response: Response, body: LoginRequest) -> CurrentSession:
    """A session of a browser: its cookie, and the token that its changes need."""
    require_own_page(request)
    platform = platform_of(request)
    require_cookies_kept(request)
    opened = await platform.sessions.log_in_browser(body, client_of(request), request.state.correlation_id)
    set_cookie(response, opened.cookie)
    response.headers["Cache-Control"] = "no-store"
    return opened.session


@routes.get("/auth/session", Permission.OWN_LOGIN, response_model=CurrentSession)
async def get_session(ctx: Ctx, response: Response) -> CurrentSession:
    response.headers["Cache-Control"] = "no-store"
    async with ctx.read() as tx:
        return await sessions.get_current(tx, ctx.session_id, ctx.authenticated.csrf_token)


@routes.delete("/auth/session", Permission.OWN_LOGIN, response_model=Session)
async def end_session(ctx: Ctx) -> Response:
    response = await ctx.mutate(lambda tx: sessions.end_session(tx, ctx.caller, ctx.session_id))
    set_cookie(response, "")
    return response


@routes.get("/auth/sessions", Permission.PERSON, response_model=SessionPage)
async def list_sessions(ctx: Ctx, cursor: str | None = None, limit: Limit = 100) -> SessionPage:
    """The caller's own logins: browsers, command lines, tokens."""
    async with ctx.read() as tx:
        return await sessions.list_sessions(tx, ctx.caller, ctx.session_id, cursor, limit)


@routes.delete("/auth/sessions/{session_id}", Permission.PERSON, response_model=Session)
async def end_one_session(ctx: Ctx, session_id: str) -> Response:
    return await ctx.mutate(lambda tx: sessions.end_session(tx, ctx.caller, session_id))
