"""Logins of people: cookies, CSRF, ends of all kinds, one-time passwords."""

import secrets
from collections.abc import AsyncIterator
from http.cookies import SimpleCookie
from typing import Any

import httpx
import pytest

from gpuaas_contract.identity import User
from gpuaas_contract.sessions import SESSION_COOKIE
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials, StaticToken
from gpuaas_sdk.errors import ForbiddenError, PasswordChangeRequiredError, UnauthenticatedError
from gpuaas_stack.settings import Settings
from tests.support.database import audited, connect
from tests.support.processes import ApiProcess, admin_file, fresh_database

PASSWORD = "a long enough password"


@pytest.fixture
async def ada(admin: GpuaasClient) -> User:
    return await admin.users.create(f"ada-{secrets.token_hex(4)}@example.com", PASSWORD)


class Browser:
    """A browser: it sends the cookie it was given, and says which page asks."""

    def __init__(self, http: httpx.AsyncClient, opened: httpx.Response) -> None:
        self.http = http
        self.cookie = SimpleCookie(opened.headers["set-cookie"])[SESSION_COOKIE].value
        self.session: dict[str, Any] = opened.json()
        self.origin = str(http.base_url).rstrip("/")

    async def ask(self, method: str, path: str, *, page: bool = True, **arguments: Any) -> httpx.Response:
        headers = {"Cookie": f"{SESSION_COOKIE}={self.cookie}"}
        if page and method != "GET":
            headers |= {"Origin": self.origin, "X-CSRF-Token": self.session["csrf_token"]}
        headers |= arguments.pop("headers", {})
        return await self.http.request(method, path, headers=headers, **arguments)


@pytest.fixture
async def http(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=settings.api_url) as http:
        yield http


async def log_in(http: httpx.AsyncClient, email: str, password: str = PASSWORD) -> Browser:
    answer = await http.post("/v1/auth/session", json={"email": email, "password": password})
    assert answer.status_code == 201, answer.text
    # httpx keeps cookies by itself: a browser is to send only what its test says.
    http.cookies.clear()
    return Browser(http, answer)


async def test_the_cookie_is_as_closed_as_cookies_can_be(http: httpx.AsyncClient, ada: User) -> None:
    answer = await http.post("/v1/auth/session", json={"email": ada.email, "password": PASSWORD})
    cookie = SimpleCookie(answer.headers["set-cookie"])[SESSION_COOKIE]
    assert SESSION_COOKIE.startswith("__Host-")
    assert (cookie["secure"], cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, True, "lax", "/")
    assert cookie["domain"] == ""
    assert len(cookie.value) >= 43
    assert answer.headers["cache-control"] == "no-store"
    assert cookie.value not in answer.text
    session = answer.json()
    assert (session["kind"], session["email"], session["user_id"]) == ("browser", ada.email, ada.id)


async def test_the_cookie_is_kept_as_a_hash_only(settings: Settings, http: httpx.AsyncClient, ada: User) -> None:
    browser = await log_in(http, ada.email)
    with connect(settings) as database:
        row = database.execute("SELECT * FROM sessions WHERE id = %s", (browser.session["id"],)).fetchone()
    assert row is not None
    assert browser.cookie not in str(row)
    assert browser.session["csrf_token"] not in str(row)


async def test_a_session_reads_changes_and_ends(http: httpx.AsyncClient, ada: User) -> None:
    browser = await log_in(http, ada.email)
    assert (await browser.ask("GET", "/v1/principal")).json()["id"] == ada.id
    again = await browser.ask("GET", "/v1/auth/session")
    assert again.json()["csrf_token"] == browser.session["csrf_token"]
    assert again.json()["current"] is True
    other = await log_in(http, ada.email)
    assert other.session["csrf_token"] != browser.session["csrf_token"]
    listed = (await browser.ask("GET", "/v1/auth/sessions")).json()["items"]
    assert {(s["id"], s["current"]) for s in listed} == {(browser.session["id"], True), (other.session["id"], False)}
    ended = await browser.ask("DELETE", f"/v1/auth/sessions/{other.session['id']}")
    assert ended.status_code == 200
    assert (await other.ask("GET", "/v1/principal")).status_code == 401
    out = await browser.ask("DELETE", "/v1/auth/session")
    assert out.status_code == 200
    gone = SimpleCookie(out.headers["set-cookie"])[SESSION_COOKIE]
    assert (gone.value, gone["max-age"], bool(gone["secure"])) == ("", "0", True)
    assert (await browser.ask("GET", "/v1/principal")).status_code == 401


async def test_others_sessions_do_not_exist(http: httpx.AsyncClient, admin: GpuaasClient, ada: User) -> None:
    eve = await admin.users.create(f"eve-{secrets.token_hex(4)}@example.com", PASSWORD)
    hers, mine = await log_in(http, ada.email), await log_in(http, eve.email)
    assert (await mine.ask("DELETE", f"/v1/auth/sessions/{hers.session['id']}")).status_code == 404
    assert (await hers.ask("GET", "/v1/principal")).status_code == 200
    # One session's token is worth nothing in another one.
    stolen = await mine.ask("DELETE", "/v1/auth/session", headers={"X-CSRF-Token": hers.session["csrf_token"]})
    assert (stolen.status_code, stolen.json()["code"]) == (403, "csrf_invalid")


@pytest.mark.parametrize(
    "headers",
    [
        pytest.param({"X-CSRF-Token": ""}, id="no token"),
        pytest.param({"X-CSRF-Token": "0" * 64}, id="wrong token"),
        pytest.param({"X-CSRF-Token": "ä"}, id="token that is no token"),
        pytest.param({"Origin": "https://evil.example"}, id="another origin"),
        pytest.param({"Origin": "null"}, id="no origin to speak of"),
        pytest.param({"Sec-Fetch-Site": "cross-site"}, id="another site"),
        pytest.param({"Sec-Fetch-Site": "same-site"}, id="a sibling's page"),
        pytest.param({"Sec-Fetch-Site": "none"}, id="no page"),
    ],
)
async def test_changes_from_elsewhere_are_refused(
    settings: Settings, http: httpx.AsyncClient, ada: User, headers: dict[str, str]
) -> None:
    browser = await log_in(http, ada.email)
    raw = {name: value.encode("utf-8") for name, value in headers.items()}
    answer = await browser.ask("DELETE", "/v1/auth/session", headers=raw)
    assert (answer.status_code, answer.json()["code"]) == (403, "csrf_invalid")
    assert (await browser.ask("GET", "/v1/auth/session")).status_code == 200
    assert audited(settings, "end_session", ada.id, "denied") == [answer.headers["x-correlation-id"]]


async def test_a_change_without_a_page_is_refused_and_reads_are_not(http: httpx.AsyncClient, ada: User) -> None:
    browser = await log_in(http, ada.email)
    token = {"X-CSRF-Token": browser.session["csrf_token"]}
    assert (await browser.ask("DELETE", "/v1/auth/session", page=False, headers=token)).status_code == 403
    assert (await browser.ask("GET", "/v1/projects", headers={"Sec-Fetch-Site": "cross-site"})).status_code == 200
    same = {**token, "Sec-Fetch-Site": "same-origin"}
    assert (await browser.ask("DELETE", "/v1/auth/session", page=False, headers=same)).status_code == 200


async def test_a_foreign_page_cannot_log_its_visitor_in(http: httpx.AsyncClient, ada: User) -> None:
    body = {"email": ada.email, "password": PASSWORD}
    for headers in ({"Origin": "https://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
        answer = await http.post("/v1/auth/session", json=body, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (403, "csrf_invalid")
        assert "set-cookie" not in answer.headers


async def test_a_token_beside_a_cookie_is_the_one_that_counts(
    http: httpx.AsyncClient, ada: User, admin: GpuaasClient
) -> None:
    browser = await log_in(http, ada.email)
    bearer = {"Authorization": f"Bearer {(await admin.fetch_token()).access_token}"}
    assert (await browser.ask("GET", "/v1/principal", headers=bearer)).json()["id"] != ada.id
    assert (await browser.ask("GET", "/v1/principal", headers={"Authorization": "Bearer x"})).status_code == 401


@pytest.mark.parametrize("column", ["expires_at", "ends_at"])
async def test_a_session_ends_when_it_is_idle_or_old(
    settings: Settings, http: httpx.AsyncClient, ada: User, column: str
) -> None:
    browser = await log_in(http, ada.email)
    with connect(settings) as database:
        row = database.execute(
            """SELECT extract(epoch FROM expires_at - created_at), extract(epoch FROM ends_at - created_at)
               FROM sessions WHERE id = %s""",
            (browser.session["id"],),
        ).fetchone()
        assert row == (12 * 3_600, 7 * 86_400)
        if column == "expires_at":
            database.execute("UPDATE sessions SET expires_at = now() - interval '1 s' WHERE user_id = %s", (ada.id,))
        else:
            # Old, and in use: the next use moves the idle time, but not past the end.
            database.execute(
                """UPDATE sessions SET ends_at = now() + interval '1 h', last_used_at = now() - interval '1 h'
                   WHERE user_id = %s""",
                (ada.id,),
            )
            assert (await browser.ask("GET", "/v1/principal")).status_code == 200
            # Then an hour goes by.
            database.execute(
                """UPDATE sessions SET expires_at = expires_at - interval '1 h', ends_at = ends_at - interval '1 h'
                   WHERE user_id = %s""",
                (ada.id,),
            )
    assert (await browser.ask("GET", "/v1/principal")).status_code == 401


async def test_each_use_moves_the_end_of_an_idle_session(
    settings: Settings, http: httpx.AsyncClient, ada: User
) -> None:
    browser = await log_in(http, ada.email)
    with connect(settings) as database:
        database.execute(
            """UPDATE sessions SET last_used_at = now() - interval '11 h', expires_at = now() + interval '1 h'
               WHERE user_id = %s""",
            (ada.id,),
        )
        assert (await browser.ask("GET", "/v1/principal")).status_code == 200
        moved = database.execute(
            "SELECT expires_at > now() + interval '11 h 59 min' FROM sessions WHERE user_id = %s", (ada.id,)
        ).fetchone()
    assert moved == (True,)


async def test_a_bearer_login_is_a_session_too(settings: Settings, ada: User) -> None:
    async with GpuaasClient(settings.api_url, PasswordCredentials(ada.email, PASSWORD)) as client:
        token = await client.fetch_token()
    async with GpuaasClient(settings.api_url, StaticToken(token.access_token)) as client:
        current = await client.sessions.current()
        assert (current.kind, current.csrf_token, current.email) == ("password", None, ada.email)
        assert current.id in [session.id async for session in client.sessions.list()]
        await client.sessions.end_current()
        with pytest.raises(UnauthenticatedError):
            await client.principal()


async def test_a_new_password_ends_every_other_login(settings: Settings, http: httpx.AsyncClient, ada: User) -> None:
    here, there = await log_in(http, ada.email), await log_in(http, ada.email)
    async with GpuaasClient(settings.api_url, PasswordCredentials(ada.email, PASSWORD)) as client:
        token = (await client.fetch_token()).access_token
    wrong = {"current_password": "not this one", "new_password": "another long password"}
    answer = await here.ask("POST", "/v1/auth/password", json=wrong)
    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (422, "/current_password")
    same = {"current_password": PASSWORD, "new_password": PASSWORD}
    assert (await here.ask("POST", "/v1/auth/password", json=same)).status_code == 422
    right = {"current_password": PASSWORD, "new_password": "another long password"}
    key = {"Idempotency-Key": f"password-{ada.id}"}
    assert (await here.ask("POST", "/v1/auth/password", json=right, headers=key)).status_code == 200
    # The same request again is answered again, though the present password is another one by now.
    replayed = await here.ask("POST", "/v1/auth/password", json=right, headers=key)
    assert (replayed.status_code, replayed.headers["idempotency-replayed"]) == (200, "true")
    assert (await here.ask("GET", "/v1/principal")).status_code == 200
    assert (await there.ask("GET", "/v1/principal")).status_code == 401
    bearer = {"Authorization": f"Bearer {token}"}
    assert (await http.get("/v1/principal", headers=bearer)).status_code == 401
    old = await http.post("/v1/auth/session", json={"email": ada.email, "password": PASSWORD})
    assert old.status_code == 401
    await log_in(http, ada.email, "another long password")


async def test_a_service_account_has_no_such_login(world_token: str, http: httpx.AsyncClient) -> None:
    bearer = {"Authorization": f"Bearer {world_token}"}
    assert (await http.get("/v1/auth/session", headers=bearer)).status_code == 403
    assert (await http.get("/v1/auth/sessions", headers=bearer)).status_code == 403


@pytest.fixture
async def world_token(admin: GpuaasClient, settings: Settings) -> str:
    tenant = await admin.tenants.create(f"t{secrets.token_hex(4)}")
    account = await admin.service_accounts.create(None, "robot", tenant_id=tenant.id)
    secret = (await admin.service_accounts.add_secret(account.id)).secret
    form = {"grant_type": "client_credentials", "client_id": account.id, "client_secret": str(secret)}
    async with httpx.AsyncClient(base_url=settings.api_url) as http:
        return str((await http.post("/v1/oauth/token", data=form)).json()["access_token"])


async def test_a_one_time_password_is_good_for_changing_it_and_nothing_else(
    settings: Settings, http: httpx.AsyncClient, admin: GpuaasClient
) -> None:
    email = f"new-{secrets.token_hex(4)}@example.com"
    user = await admin.users.create(email, PASSWORD, password_change_required=True)
    assert user.password_change_required
    browser = await log_in(http, email)
    assert browser.session["password_change_required"] is True
    answer = await browser.ask("GET", "/v1/projects")
    assert (answer.status_code, answer.json()["code"]) == (403, "password_change_required")
    hrefs = [(action["method"], action["href"]) for action in answer.json()["allowed_actions"]]
    assert hrefs == [("POST", "/v1/auth/password"), ("DELETE", "/v1/auth/session")]
    async with GpuaasClient(settings.api_url, PasswordCredentials(email, PASSWORD)) as client:
        for refused in (client.principal(), client.sessions.approve_device("BCDF-BCDF"), client.tenants.create("x")):
            with pytest.raises(PasswordChangeRequiredError):
                await refused
        await client.sessions.end_current()
    right = {"current_password": PASSWORD, "new_password": "my very own password"}
    assert (await browser.ask("POST", "/v1/auth/password", json=right)).status_code == 200
    assert (await browser.ask("GET", "/v1/projects")).status_code == 200
    # Forgotten: an administrator gives another one-time password.
    await admin.users.update(user.id, password="a helping password")
    assert (await browser.ask("GET", "/v1/auth/session")).status_code == 401
    async with GpuaasClient(settings.api_url, PasswordCredentials(email, "a helping password")) as client:
        with pytest.raises(PasswordChangeRequiredError):
            await client.principal()


async def test_the_first_administrator_must_choose_a_password(settings: Settings) -> None:
    """On a platform of its own, as it is set up: nothing says that the first password may stay."""
    first = ("root@gpuaas.example", "shown once at set-up")
    with fresh_database(settings) as database, admin_file(settings.state_dir, *first) as file:
        process = ApiProcess(
            settings,
            database,
            bootstrap_admin_file=file,
            bootstrap_admin_permanent="false",
            migrate_at_start="true",
        )
        with process.serving() as url:
            async with GpuaasClient(url, PasswordCredentials(*first)) as client:
                with pytest.raises(ForbiddenError) as refused:
                    await client.tenants.create("first")
                assert refused.value.code == "password_change_required"
                await client.sessions.change_password(first[1], "one that I chose myself")
                with pytest.raises(UnauthenticatedError):
                    await client.principal()
            async with GpuaasClient(url, PasswordCredentials(first[0], "one that I chose myself")) as client:
                assert (await client.tenants.create("first")).name == "first"
        with process.serving() as url:
            # A restart reads the file again, and changes nothing.
            async with GpuaasClient(url, PasswordCredentials(*first)) as client:
                with pytest.raises(UnauthenticatedError):
                    await client.principal()
