"""The page at which a person approves a command line, as a browser without script uses it.

Refusals that a route does not show in its own form reach the person as a page, too: see `api.problems`."""

from datetime import UTC, datetime

from fastapi import Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from pydantic import ValidationError

from gpuaas_contract.identity import LoginRequest
from gpuaas_contract.problems import Code
from gpuaas_contract.sessions import SESSION_COOKIE
from gpuaas_platform.accounts.routes.sessions import client_of, require_cookies_kept, require_own_page, set_cookie
from gpuaas_platform.accounts.rules import device_page as page
from gpuaas_platform.accounts.service import oauth, sessions
from gpuaas_platform.api.context import Form, PageCtx, form_of, platform_of
from gpuaas_platform.api.routing import Routes
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.core.origins import current_origin
from gpuaas_platform.identity.records import DeviceStatus
from gpuaas_platform.identity.rules.policy import Permission
from gpuaas_platform.identity.service.principals import Authenticated

routes = Routes("device", prefix="")
_DECISIONS = {"approve": DeviceStatus.APPROVED, "deny": DeviceStatus.DENIED}
_ENDED = {
    DeviceStatus.APPROVED: "The command line is logged in within seconds. You can close this page.",
    DeviceStatus.DENIED: "The command line is not let in. You can close this page.",
}


def _show(html: str, status: int = 200, headers: dict[str, str] | None = None) -> HTMLResponse:
    return HTMLResponse(html, status, {**page.HEADERS, **(headers or {})})


def _code_of(form: Form) -> str:
    typed = form.get("user_code", "")
    if len(typed) > page.MOST_TYPED:
        raise Refusal(Code.INVALID_REQUEST, "this is longer than any code: type the eight letters from the terminal")
    return typed


@routes.get(page.PATH, Permission.ANONYMOUS, include_in_schema=False)
async def show_device_page(request: Request) -> Response:
    """Whoever is not logged in gets the form for that; whoever is, the request behind the code."""
    user_code = _code_of(dict(request.query_params))
    authenticated = await _browser_of(request)
    if authenticated is None or authenticated.csrf_token is None:
        return _show(page.login_page(user_code))
    platform, caller, correlation_id = platform_of(request), authenticated.caller, str(request.state.correlation_id)
    request.state.caller = caller
    platform.limits.requests.take(caller.id)
    if authenticated.password_change_required:
        detail = (
            "your password is good for one log-in only: change it first, in a terminal with gpuaas login --email "
            f"{caller.name} and gpuaas password, then open this page again"
        )
        return _show(page.code_page(caller.name, authenticated.csrf_token, detail), 403)
    if not user_code.strip():
        return _show(page.code_page(caller.name, authenticated.csrf_token))
    try:
        platform.limits.logins.take(f"user_code/{caller.id}")
        with platform.oauth.typing_code(caller, correlation_id):
            async with platform.database.reading(caller.id, correlation_id) as tx:
                asked = await oauth.look_at_device(tx, caller, user_code)
    except Refusal as refusal:
        wait = {"Retry-After": str(refusal.retry_after)} if refusal.retry_after else {}
        return _show(page.code_page(caller.name, authenticated.csrf_token, refusal.detail), refusal.status, wait)
    address = current_origin.get().address
    return _show(page.request_page(asked, caller.name, authenticated.csrf_token, address, datetime.now(UTC)))


async def _browser_of(request: Request) -> Authenticated | None:
    cookie = request.cookies.get(SESSION_COOKIE)
    if not cookie:
        return None
    try:
        return await platform_of(request).sessions.authenticate_cookie(cookie, str(request.state.correlation_id))
    except Refusal as refusal:
        if refusal.code == Code.UNAUTHENTICATED:
            return None
        raise


@routes.post(page.LOGIN_PATH, Permission.ANONYMOUS, include_in_schema=False)
async def log_in_on_device_page(request: Request) -> Response:
    require_own_page(request)
    require_cookies_kept(request)
    form = await form_of(request)
    user_code, email = _code_of(form), form.get("email", "")
    try:
        body = LoginRequest.model_validate({"email": email or None, "password": form.get("password") or None})
    except ValidationError:
        return _show(page.login_page(user_code, problem="type your e-mail and your password"), 422)
    try:
        opened = await platform_of(request).sessions.log_in_browser(
            body, client_of(request), request.state.correlation_id
        )
    except Refusal as refusal:
        if refusal.code not in {Code.INVALID_CREDENTIALS, Code.RATE_LIMITED}:
            raise
        wait = {"Retry-After": str(refusal.retry_after)} if refusal.retry_after else {}
        return _show(page.login_page(user_code, body.email, refusal.detail), refusal.status, wait)
    code = oauth.normal_user_code(user_code).strip("-")
    target = f"{page.PATH}?user_code={code}" if code else page.PATH
    response = RedirectResponse(target, 303, page.HEADERS)
    set_cookie(response, opened.cookie)
    return response


@routes.post(page.DECIDE_PATH, Permission.PERSON, include_in_schema=False)
async def decide_on_device_page(ctx: PageCtx, request: Request) -> Response:
    form = await form_of(request)
    status = _DECISIONS.get(form.get("decision", ""))
    if status is None:
        raise Refusal(Code.INVALID_REQUEST, "the form says neither approve nor deny: open the page again")
    user_code = _code_of(form)
    ctx.platform.limits.logins.take(f"user_code/{ctx.caller.id}")
    with ctx.platform.oauth.typing_code(ctx.caller, ctx.correlation_id):
        await ctx.mutate(lambda tx: oauth.decide_device(tx, ctx.caller, user_code, status))
    return _show(page.message_page(status.value.capitalize(), _ENDED[status]))


@routes.post(page.LOGOUT_PATH, Permission.OWN_LOGIN, include_in_schema=False)
async def log_out_on_device_page(ctx: PageCtx) -> Response:
    await ctx.mutate(lambda tx: sessions.end_session(tx, ctx.caller, ctx.session_id))
    response = RedirectResponse(page.PATH, 303, page.HEADERS)
    set_cookie(response, "")
    return response
