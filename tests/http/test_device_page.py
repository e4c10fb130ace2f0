"""The page at which a person lets a command line in, used as a browser without script uses it."""

import re
import secrets
from collections.abc import AsyncIterator
from html import unescape
from typing import Any

import httpx
import pytest

from gpuaas_contract.identity import User
from gpuaas_contract.oauth import DEVICE_CODE
from gpuaas_contract.sessions import SESSION_COOKIE
from gpuaas_sdk.client import GpuaasClient
from gpuaas_stack.settings import Settings
from tests.support.database import audited, connect
from tests.support.processes import ApiProcess

PASSWORD = "a long enough password"
CLIENT = '<b>"cli"</b>'


@pytest.fixture
async def ada(admin: GpuaasClient) -> User:
    return await admin.users.create(f"ada-{secrets.token_hex(4)}@example.com", PASSWORD)


class Page:
    """A browser: keeps the cookie, fills in the forms that it was shown, and says which page they came from."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http = http
        self.origin = str(http.base_url).rstrip("/")
        self.shown = httpx.Response(204)
        self.cookie = ""

    @property
    def text(self) -> str:
        return unescape(re.sub(r"<style>.*?</style>|<[^>]+>", " ", self.shown.text))

    async def open(self, address: str) -> int:
        return await self._go("GET", address)

    async def submit(self, action: str, button: dict[str, str] | None = None, **typed: str) -> int:
        form = re.search(rf'<form method="post" action="{action}">(.*?)</form>', self.shown.text, re.S)
        assert form is not None, self.shown.text
        hidden = re.findall(r'<input type="hidden" name="([^"]*)" value="([^"]*)">', form[1])
        fields = {**{name: unescape(value) for name, value in hidden}, **typed, **(button or {})}
        return await self._go("POST", action, data=fields, headers={"Origin": self.origin})

    async def log_in(self, user: User, password: str = PASSWORD) -> int:
        return await self.submit("/device/login", email=user.email, password=password)

    async def _go(self, method: str, address: str, headers: dict[str, str] | None = None, **content: Any) -> int:
        cookies = {"Cookie": f"{SESSION_COOKIE}={self.cookie}"} if self.cookie else {}
        self.shown = await self.http.request(method, address, headers={**cookies, **(headers or {})}, **content)
        self.http.cookies.clear()
        assert_closed(self.shown)
        if "set-cookie" in self.shown.headers:
            self.cookie = self.shown.headers["set-cookie"].partition("=")[2].partition(";")[0].strip('"')
        if self.shown.status_code == 303:
            return await self._go("GET", self.shown.headers["location"])
        return self.shown.status_code


def assert_closed(answer: httpx.Response) -> None:
    """No script, no foreign origin, no frame, no copy in a cache."""
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert "script-src" not in policy
    assert "unsafe" not in policy
    assert answer.headers["x-frame-options"] == "DENY"
    assert answer.headers["cache-control"] == "no-store"
    assert "<script" not in answer.text
    assert not re.search(r"(?:src|href|action)=\"(?!/device)", answer.text)


@pytest.fixture
async def http(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=settings.api_url) as http:
        yield http


@pytest.fixture
def page(http: httpx.AsyncClient) -> Page:
    return Page(http)


async def start(http: httpx.AsyncClient) -> dict[str, Any]:
    return dict((await http.post("/v1/oauth/device_authorization", data={"client_id": CLIENT})).json())


async def poll(http: httpx.AsyncClient, started: dict[str, Any]) -> httpx.Response:
    form = {"grant_type": DEVICE_CODE, "device_code": started["device_code"], "client_id": CLIENT}
    return await http.post("/v1/oauth/token", data=form)


async def test_the_address_that_the_command_line_prints_lets_it_in(
    settings: Settings, http: httpx.AsyncClient, page: Page, ada: User
) -> None:
    started = await start(http)
    assert await page.open(started["verification_uri_complete"]) == 200
    assert "Log in" in page.text
    assert CLIENT not in page.text, "what asks is shown to people who are logged in"
    assert await page.log_in(ada) == 200
    for told in (started["user_code"], CLIENT, "127.0.0.1", "ago", ada.email):
        assert told in page.text, told
    assert "<b>" not in page.shown.text
    assert await page.submit("/device/decide", {"decision": "approve"}) == 200
    assert "Approved" in page.text
    assert (await poll(http, started)).status_code == 200
    assert len(audited(settings, "auth.device_approved", ada.id)) == 1


async def test_a_code_can_be_typed_and_denied(http: httpx.AsyncClient, page: Page, ada: User) -> None:
    started = await start(http)
    await page.open(started["verification_uri"])
    assert await page.log_in(ada) == 200
    assert "Which code" in page.text
    assert await page.open(f"/device?user_code={started['user_code'].replace('-', '+').lower()}") == 200
    assert await page.submit("/device/decide", {"decision": "deny"}) == 200
    assert "Denied" in page.text
    assert (await poll(http, started)).json()["error"] == "access_denied"


async def test_each_code_that_cannot_be_approved_gets_a_sentence(
    settings: Settings, http: httpx.AsyncClient, page: Page, ada: User, admin: GpuaasClient
) -> None:
    await page.open("/device")
    await page.log_in(ada)
    assert await page.open("/device?user_code=ZZZZ-ZZZZ") == 404
    assert "There is no login with the code 'ZZZZ-ZZZZ'" in page.text
    late, used, taken, mine = [await start(http) for _ in range(4)]
    with connect(settings) as database:
        statement = "UPDATE device_authorizations SET expires_at = now() - interval '1 s' WHERE user_code = %s"
        database.execute(statement, (late["user_code"],))
    assert await page.open(late["verification_uri_complete"]) == 404
    assert "has expired; start again in the terminal" in page.text
    await page.open(used["verification_uri_complete"])
    await page.submit("/device/decide", {"decision": "approve"})
    assert (await poll(http, used)).status_code == 200
    assert await page.open(used["verification_uri_complete"]) == 404
    assert "was used already" in page.text
    await admin.sessions.approve_device(taken["user_code"])
    assert await page.open(taken["verification_uri_complete"]) == 409
    assert "omebody else has approved this code" in page.text
    # Decided while the page was open, then sent a second time.
    await page.open(mine["verification_uri_complete"])
    before = page.shown
    assert await page.submit("/device/decide", {"decision": "approve"}) == 200
    page.shown = before
    assert await page.submit("/device/decide", {"decision": "deny"}) == 409
    assert "ou have approved this code already" in page.text


@pytest.mark.parametrize("typed", ["", "   ", "<script>alert(1)</script>"[:20], "é", "%00", "a" * 21, "a" * 5000])
async def test_what_is_no_code_is_refused_in_words(page: Page, ada: User, typed: str) -> None:
    await page.open("/device")
    await page.log_in(ada)
    status = await page.open(str(httpx.URL("/device", params={"user_code": typed})))
    assert status == (200 if not typed.strip() else 422 if len(typed) > 20 else 404)
    assert page.shown.headers["content-type"].startswith("text/html")


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"Origin": "https://evil.example"}, id="another origin"),
        pytest.param({"Origin": "null"}, id="no origin to speak of"),
        pytest.param({"Sec-Fetch-Site": "cross-site"}, id="another site"),
        pytest.param({}, id="no page"),
    ],
)
async def test_forms_of_other_pages_are_refused(
    http: httpx.AsyncClient, page: Page, ada: User, headers: dict[str, str]
) -> None:
    started = await start(http)
    await page.open(started["verification_uri_complete"])
    await page.log_in(ada)
    token = re.search(r'name="csrf_token" value="([0-9a-f]+)"', page.shown.text)
    assert token is not None
    fields = {"user_code": started["user_code"], "decision": "approve", "csrf_token": token[1]}
    cookie = {"Cookie": f"{SESSION_COOKIE}={page.cookie}"}
    answer = await http.post("/device/decide", data=fields, headers={**cookie, **headers})
    assert answer.status_code == 403
    own = {**cookie, "Origin": page.origin}
    for wrong in ("", "0" * 64, "é"):
        answer = await http.post("/device/decide", data={**fields, "csrf_token": wrong}, headers=own)
        assert answer.status_code == 403
        assert_closed(answer)
    assert (await poll(http, started)).json()["error"] == "authorization_pending"
    if headers:
        login = {"email": ada.email, "password": PASSWORD}
        refused = await http.post("/device/login", data=login, headers=headers)
        assert (refused.status_code, "set-cookie" in refused.headers) == (403, False)


async def test_forms_that_make_no_sense(http: httpx.AsyncClient, page: Page, ada: User) -> None:
    assert (await http.post("/device/decide", data={"decision": "approve"})).status_code == 401
    for form in ({}, {"email": ada.email}, {"email": "x" * 300, "password": "x"}, {"email": "<i>", "password": "x"}):
        answer = await http.post("/device/login", data={"user_code": "", **form})
        assert answer.status_code in {401, 422}
        assert "<i>" not in answer.text
        assert_closed(answer)
    assert (await http.post("/device/login", json={"email": ada.email, "password": PASSWORD})).status_code == 422
    assert (await http.post("/device/login", data={f"f{n}": "x" for n in range(20)})).status_code == 422
    nul = await http.post("/device/login", data={"email": "a\0@b", "password": "x"})
    assert nul.status_code in {401, 422}
    await page.open("/device?user_code=BCDF-GHJK")
    assert await page.log_in(ada, "not the password") == 401
    assert "do not belong together" in page.text
    assert ada.email in page.shown.text
    assert "not the password" not in page.shown.text
    await page.log_in(ada)
    cookie = page.cookie
    token = re.search(r'name="csrf_token" value="([0-9a-f]+)"', page.shown.text)
    assert token is not None
    for decision in ("", "maybe"):
        fields = {"csrf_token": token[1], "decision": decision, "user_code": "BCDF-GHJK"}
        own = {"Cookie": f"{SESSION_COOKIE}={cookie}", "Origin": page.origin}
        assert (await http.post("/device/decide", data=fields, headers=own)).status_code == 422
    assert await page.submit("/device/logout") == 200
    assert "Log in" in page.text
    page.cookie = cookie
    assert await page.open("/device") == 200
    assert "Log in" in page.text, "the session is over on the platform, too"


async def test_a_password_for_one_log_in_is_changed_first(page: Page, admin: GpuaasClient) -> None:
    user = await admin.users.create(f"new-{secrets.token_hex(4)}@example.com", PASSWORD, password_change_required=True)
    await page.open("/device?user_code=BCDF-GHJK")
    assert await page.log_in(user) == 403
    assert "gpuaas password" in page.text


async def test_guesses_on_the_page_are_limited_like_those_at_the_log_in(settings: Settings, ada: User) -> None:
    with ApiProcess(settings, login_failures_per_account="3").serving() as url:
        async with httpx.AsyncClient(base_url=url) as http:
            page = Page(http)
            await page.open("/device")
            refused = [await page.log_in(ada, "wrong") for _ in range(4)]
            assert refused == [401, 401, 401, 429]
            assert int(page.shown.headers["retry-after"]) >= 1
            assert "try again in" in page.text
            other = Page(http)
            await other.open("/device")
            eve = ada.model_copy(update={"email": f"nobody-{ada.email}"})
            assert await other.log_in(eve) == 401


async def test_codes_are_not_to_be_guessed(page: Page, ada: User) -> None:
    await page.open("/device")
    await page.log_in(ada)
    seen = {await page.open("/device?user_code=ZZZZ-ZZZZ") for _ in range(12)}
    assert seen == {404, 429}
    assert "too many failed attempts to type a code" in page.text.lower()
