"""Command lines that are let in by a person: the device flow, refresh, revocation."""

import asyncio
import re
import secrets
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from gpuaas_contract.identity import User
from gpuaas_contract.oauth import DEVICE_CODE, REFRESH_TOKEN
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials, RefreshTokenCredentials, StaticToken
from gpuaas_sdk.device import DeviceLogin
from gpuaas_sdk.errors import AccessDeniedError, ConflictError, ForbiddenError, NotFoundError, UnauthenticatedError
from gpuaas_stack.settings import Settings
from tests.support.database import audited, connect
from tests.support.world import World

PASSWORD = "a long enough password"
CLIENT = "test command line"


@pytest.fixture
async def ada(admin: GpuaasClient) -> User:
    return await admin.users.create(f"ada-{secrets.token_hex(4)}@example.com", PASSWORD)


@pytest.fixture
async def browser(settings: Settings, ada: User) -> AsyncIterator[GpuaasClient]:
    """Where the person is logged in already."""
    async with GpuaasClient(settings.api_url, PasswordCredentials(ada.email, PASSWORD)) as client:
        yield client


@pytest.fixture
async def http(settings: Settings) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=settings.api_url) as http:
        yield http


class Spoiling(httpx.AsyncHTTPTransport):
    """A way to the platform on which the next token gets lost."""

    spoils = False

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if self.spoils:
            self.spoils = False
            request.headers["Authorization"] = "Bearer spoilt"
        return await super().handle_async_request(request)


async def start(http: httpx.AsyncClient) -> dict[str, Any]:
    answer = await http.post("/v1/oauth/device_authorization", data={"client_id": CLIENT})
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
    return dict(answer.json())


async def poll(http: httpx.AsyncClient, device_code: str, client_id: str = CLIENT) -> httpx.Response:
    form = {"grant_type": DEVICE_CODE, "device_code": device_code, "client_id": client_id}
    return await http.post("/v1/oauth/token", data=form)


async def refresh(http: httpx.AsyncClient, token: str) -> httpx.Response:
    return await http.post("/v1/oauth/token", data={"grant_type": REFRESH_TOKEN, "refresh_token": token})


async def token_of(http: httpx.AsyncClient, browser: GpuaasClient) -> dict[str, Any]:
    started = await start(http)
    await browser.sessions.approve_device(started["user_code"])
    answer = await poll(http, started["device_code"])
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def outlive_grace(settings: Settings) -> None:
    """As if all that was used was used a minute ago."""
    with connect(settings) as database:
        database.execute("UPDATE refresh_tokens SET used_at = used_at - interval '1 minute'")


async def who(http: httpx.AsyncClient, token: str) -> httpx.Response:
    return await http.get("/v1/principal", headers={"Authorization": f"Bearer {token}"})


def assert_oauth_error(answer: httpx.Response, error: str, status: int = 400) -> None:
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    assert answer.headers["cache-control"] == "no-store"
    body = answer.json()
    assert body["error"] == error
    assert body["error_description"]
    assert body["code"]
    assert body["correlation_id"] == answer.headers["x-correlation-id"]


async def test_the_whole_flow(settings: Settings, http: httpx.AsyncClient, browser: GpuaasClient, ada: User) -> None:
    started = await start(http)
    assert re.fullmatch(r"[BCDFGHJKLMNPQRSTVWXZ]{4}-[BCDFGHJKLMNPQRSTVWXZ]{4}", started["user_code"])
    assert started["verification_uri"] == f"{settings.api_url}/device"
    assert started["verification_uri_complete"].endswith(f"?user_code={started['user_code']}")
    assert (started["expires_in"], started["interval"]) == (600, 5)
    assert_oauth_error(await poll(http, started["device_code"]), "authorization_pending")
    assert_oauth_error(await poll(http, started["device_code"]), "slow_down")
    asked = await browser.sessions.device_request(started["user_code"])
    assert (asked.client_id, asked.status) == (CLIENT, "pending")
    typed = started["user_code"].replace("-", " ").lower()
    assert (await browser.sessions.approve_device(typed)).status == "approved"
    answer = await poll(http, started["device_code"])
    assert answer.status_code == 200
    token = answer.json()
    assert (await who(http, token["access_token"])).json()["id"] == ada.id
    # One use.
    assert_oauth_error(await poll(http, started["device_code"]), "invalid_grant")
    sessions = [(session.kind, session.client) async for session in browser.sessions.list()]
    assert ("device", CLIENT) in sessions
    with connect(settings) as database:
        stored = str(database.execute("SELECT * FROM refresh_tokens").fetchall())
    assert token["refresh_token"] not in stored


async def test_what_was_denied_expired_or_never_started(
    settings: Settings, http: httpx.AsyncClient, browser: GpuaasClient
) -> None:
    denied = await start(http)
    await browser.sessions.deny_device(denied["user_code"])
    assert_oauth_error(await poll(http, denied["device_code"]), "access_denied")
    with pytest.raises(ConflictError):
        await browser.sessions.approve_device(denied["user_code"])
    late = await start(http)
    with connect(settings) as database:
        database.execute(
            "UPDATE device_authorizations SET expires_at = now() - interval '1 s' WHERE user_code = %s",
            (late["user_code"],),
        )
    assert_oauth_error(await poll(http, late["device_code"]), "expired_token")
    with pytest.raises(NotFoundError):
        await browser.sessions.approve_device(late["user_code"])
    with pytest.raises(NotFoundError):
        await browser.sessions.approve_device("ZZZZ-ZZZZ")
    assert_oauth_error(await poll(http, "never-started"), "invalid_grant")
    another = await start(http)
    await browser.sessions.approve_device(another["user_code"])
    assert_oauth_error(await poll(http, another["device_code"], "another program"), "invalid_grant")


async def test_the_user_is_gone_between_approval_and_poll(
    http: httpx.AsyncClient, browser: GpuaasClient, admin: GpuaasClient, ada: User
) -> None:
    started = await start(http)
    await browser.sessions.approve_device(started["user_code"])
    await admin.users.update(ada.id, disabled=True)
    assert_oauth_error(await poll(http, started["device_code"]), "access_denied")


async def test_one_code_makes_one_login_also_in_a_race(http: httpx.AsyncClient, browser: GpuaasClient) -> None:
    started = await start(http)
    await browser.sessions.approve_device(started["user_code"])
    answers = await asyncio.gather(*(poll(http, started["device_code"]) for _ in range(8)))
    assert sorted(answer.status_code for answer in answers) == [200] + 7 * [400]
    assert len([s async for s in browser.sessions.list() if s.kind == "device"]) == 1


async def test_requests_that_make_no_sense(http: httpx.AsyncClient) -> None:
    cases: list[tuple[dict[str, str], str, int]] = [
        ({}, "invalid_request", 400),
        ({"grant_type": "password"}, "unsupported_grant_type", 400),
        ({"grant_type": DEVICE_CODE}, "invalid_request", 400),
        ({"grant_type": REFRESH_TOKEN}, "invalid_request", 400),
        ({"grant_type": REFRESH_TOKEN, "refresh_token": "made up"}, "invalid_grant", 400),
        ({"grant_type": REFRESH_TOKEN, "refresh_token": "x" * 5_000}, "invalid_request", 400),
        ({"grant_type": "client_credentials"}, "invalid_client", 401),
        ({"grant_type": "client_credentials", "client_id": "sva_x", "client_secret": "x"}, "invalid_client", 401),
        ({"grant_type": "client_credentials", "client_assertion": "x"}, "invalid_request", 400),
    ]
    for form, error, status in cases:
        assert_oauth_error(await http.post("/v1/oauth/token", data=form), error, status)
    assert_oauth_error(await http.post("/v1/oauth/token", json={"grant_type": "x"}), "invalid_request")
    nul = {"grant_type": "client_credentials", "client_id": "sva_\x00", "client_secret": "x"}
    assert_oauth_error(await http.post("/v1/oauth/token", data=nul), "invalid_request")


async def test_refresh_tokens_rotate(http: httpx.AsyncClient, browser: GpuaasClient, ada: User) -> None:
    token = await token_of(http, browser)
    for _ in range(3):
        answer = await refresh(http, token["refresh_token"])
        assert answer.status_code == 200
        assert answer.json()["refresh_token"] != token["refresh_token"]
        token = answer.json()
        assert (await who(http, token["access_token"])).json()["id"] == ada.id
    assert len([s async for s in browser.sessions.list() if s.kind == "device"]) == 1


async def test_a_reused_refresh_token_ends_the_whole_family(
    settings: Settings, http: httpx.AsyncClient, browser: GpuaasClient, ada: User
) -> None:
    stolen = await token_of(http, browser)
    untouched = await token_of(http, browser)
    rotated = (await refresh(http, stolen["refresh_token"])).json()
    outlive_grace(settings)
    assert_oauth_error(await refresh(http, stolen["refresh_token"]), "invalid_grant")
    # Both the thief's and the owner's: the newest refresh token, and every access token.
    assert_oauth_error(await refresh(http, rotated["refresh_token"]), "invalid_grant")
    for token in (stolen, rotated):
        assert (await who(http, token["access_token"])).status_code == 401
    assert (await who(http, untouched["access_token"])).status_code == 200
    assert len(audited(settings, "auth.refresh_token_reused", ada.id, "denied")) == 1


async def test_two_commands_at_once_do_not_log_each_other_out(
    settings: Settings, http: httpx.AsyncClient, browser: GpuaasClient, ada: User
) -> None:
    token = await token_of(http, browser)
    answers = await asyncio.gather(*(refresh(http, token["refresh_token"]) for _ in range(6)))
    assert [answer.status_code for answer in answers] == 6 * [200]
    assert len({answer.json()["refresh_token"] for answer in answers}) == 6
    for answer in answers:
        assert (await who(http, answer.json()["access_token"])).status_code == 200
    assert len(audited(settings, "auth.refresh_token_repeated", ada.id)) == 5
    outlive_grace(settings)
    assert (await refresh(http, answers[0].json()["refresh_token"])).status_code == 200
    assert_oauth_error(await refresh(http, token["refresh_token"]), "invalid_grant")
    for answer in answers:
        assert (await who(http, answer.json()["access_token"])).status_code == 401


async def test_a_login_ends_after_a_week_unused_and_after_a_month_in_any_case(
    settings: Settings, http: httpx.AsyncClient, browser: GpuaasClient
) -> None:
    day = 86_400
    token = await token_of(http, browser)
    (session,) = [s async for s in browser.sessions.list() if s.kind == "device"]
    with connect(settings) as database:
        row = database.execute(
            """SELECT idle_seconds, extract(epoch FROM expires_at - created_at)::float,
                      extract(epoch FROM ends_at - created_at)::float FROM sessions WHERE id = %s""",
            (session.id,),
        ).fetchone()
        assert row is not None
        assert [round(seconds / day, 2) for seconds in row] == [7, 7, 30]
        # 29 days and 23 hours later, used every day.
        database.execute("UPDATE sessions SET ends_at = now() + interval '1 hour' WHERE id = %s", (session.id,))
    token = (await refresh(http, token["refresh_token"])).json()
    (session,) = [s async for s in browser.sessions.list() if s.kind == "device"]
    with connect(settings) as database:
        ended = database.execute("SELECT expires_at = ends_at FROM sessions WHERE id = %s", (session.id,)).fetchone()
        assert ended == (True,)
        database.execute("UPDATE sessions SET expires_at = now() - interval '1 s' WHERE id = %s", (session.id,))
    assert_oauth_error(await refresh(http, token["refresh_token"]), "invalid_grant")
    assert (await who(http, token["access_token"])).status_code == 401


async def test_a_password_login_is_renewable_where_it_asks(http: httpx.AsyncClient, ada: User) -> None:
    body = {"email": ada.email, "password": PASSWORD}
    assert "refresh_token" not in (await http.post("/v1/auth/login", json=body)).json()
    assert (await http.post("/v1/auth/login", json={**body, "renewable": "perhaps"})).status_code == 422
    token = (await http.post("/v1/auth/login", json={**body, "renewable": True})).json()
    renewed = (await refresh(http, token["refresh_token"])).json()
    assert (await who(http, renewed["access_token"])).json()["id"] == ada.id


async def test_a_new_password_ends_command_lines_also_the_one_that_changed_it_and_waiting_approvals(
    settings: Settings, http: httpx.AsyncClient, browser: GpuaasClient
) -> None:
    own, other = await token_of(http, browser), await token_of(http, browser)
    started = await start(http)
    await browser.sessions.approve_device(started["user_code"])
    async with GpuaasClient(settings.api_url, StaticToken(own["access_token"])) as client:
        await client.sessions.change_password(PASSWORD, "another long password")
    for token in (own, other):
        assert (await who(http, token["access_token"])).status_code == 401
        assert_oauth_error(await refresh(http, token["refresh_token"]), "invalid_grant")
    assert_oauth_error(await poll(http, started["device_code"]), "access_denied")


async def test_revocation(http: httpx.AsyncClient, browser: GpuaasClient, world: World) -> None:
    for kind in ("refresh_token", "access_token"):
        token = await token_of(http, browser)
        answer = await http.post("/v1/oauth/revoke", data={"token": token[kind], "token_type_hint": kind})
        assert (answer.status_code, answer.json()) == (200, {})
        assert (await who(http, token["access_token"])).status_code == 401
        assert_oauth_error(await refresh(http, token["refresh_token"]), "invalid_grant")
        again = await http.post("/v1/oauth/revoke", data={"token": token[kind]})
        assert again.status_code == 200
    for unknown in ("made-up", "a.b.c", "...", "é"):
        assert (await http.post("/v1/oauth/revoke", data={"token": unknown})).status_code == 200
    account = (await world.controller.fetch_token()).access_token
    refused = await http.post("/v1/oauth/revoke", data={"token": account})
    assert (refused.status_code, refused.json()["error"]) == (400, "unsupported_token_type")
    assert (await who(http, account)).status_code == 200


async def test_ending_the_session_or_the_user_ends_the_command_line(
    settings: Settings,
    http: httpx.AsyncClient,
    browser: GpuaasClient,
    admin: GpuaasClient,
    ada: User,
    second_api_url: str,
) -> None:
    first, second = await token_of(http, browser), await token_of(http, browser)
    async with GpuaasClient(settings.api_url, StaticToken(first["access_token"])) as client:
        current = await client.sessions.current()
    await browser.sessions.end(current.id)
    assert (await who(http, first["access_token"])).status_code == 401
    assert_oauth_error(await refresh(http, first["refresh_token"]), "invalid_grant")
    async with httpx.AsyncClient(base_url=second_api_url) as elsewhere:
        assert (await who(elsewhere, second["access_token"])).status_code == 200
        await admin.users.update(ada.id, disabled=True)
        assert (await who(elsewhere, second["access_token"])).status_code == 401
        assert_oauth_error(await refresh(elsewhere, second["refresh_token"]), "invalid_grant")
        await admin.users.update(ada.id, disabled=False)
        assert (await who(elsewhere, second["access_token"])).status_code == 401


async def test_the_sdk_logs_a_command_line_in_and_keeps_it_so(
    settings: Settings, http: httpx.AsyncClient, browser: GpuaasClient, ada: User
) -> None:
    async with DeviceLogin(settings.api_url, "sdk") as login:
        started = await login.start()
        waiting = asyncio.create_task(login.wait(started))
        await browser.sessions.approve_device(started.user_code)
        token = await waiting
        denied = await login.start()
        await browser.sessions.deny_device(denied.user_code)
        with pytest.raises(AccessDeniedError):
            await login.wait(denied)
    kept: list[str] = [str(token.refresh_token)]
    for _ in range(2):
        credentials, way = RefreshTokenCredentials(kept[-1], kept.append), Spoiling()
        async with GpuaasClient(settings.api_url, credentials, transport=way) as client:
            assert (await client.principal()).id == ada.id
            # A token that is refused is renewed without the caller's noticing.
            way.spoils = True
            assert (await client.principal()).id == ada.id
            assert not way.spoils
    assert len(set(kept)) == 5
    outlive_grace(settings)
    async with GpuaasClient(settings.api_url, RefreshTokenCredentials(kept[0], kept.append)) as client:
        with pytest.raises(UnauthenticatedError):
            await client.principal()


async def test_a_service_account_approves_nothing(http: httpx.AsyncClient, world: World) -> None:
    started = await start(http)
    with pytest.raises(ForbiddenError):
        await world.controller.sessions.approve_device(started["user_code"])
