"""Guessing passwords: it is slow for whoever guesses, it is told in the audit trail, and it locks nobody else out."""

import asyncio
import secrets
import signal
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import httpx
import pytest

from gpuaas_contract.identity import User
from gpuaas_contract.oauth import CLIENT_CREDENTIALS
from gpuaas_sdk.client import GpuaasClient
from gpuaas_stack.settings import Settings
from tests.support.database import connect, dump
from tests.support.processes import ApiProcess
from tests.support.waiting import until
from tests.support.world import World, make_key

PASSWORD = "a long enough password"
FREE_OF_ACCOUNT, FREE_OF_ADDRESS = 3, 8
MOST_GUESSES = FREE_OF_ADDRESS + 12
"""The last of these waits an hour: however slow the machine is, one of them came too early."""


def limited_api(settings: Settings, **changes: str) -> ApiProcess:
    free = {"login_failures_per_account": str(FREE_OF_ACCOUNT), "login_failures_per_address": str(FREE_OF_ADDRESS)}
    return ApiProcess(settings, None, port=None, **free, **changes)


@pytest.fixture(scope="module")
def addresses() -> Iterator[str]:
    """Source addresses that no other test of this module has."""
    return (f"127.0.{number // 250 + 1}.{number % 250 + 1}" for number in range(10_000))


@asynccontextmanager
async def from_address(url: str, address: str, **headers: str) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.AsyncHTTPTransport(local_address=address)
    async with httpx.AsyncClient(base_url=url, transport=transport, headers=headers, timeout=60) as http:
        yield http


async def log_in(http: httpx.AsyncClient, email: str, password: str = "a wrong password") -> httpx.Response:
    return await http.post("/v1/auth/login", json={"email": email, "password": password})


async def guess_until_limited(http: httpx.AsyncClient, email: str | None = None) -> list[int]:
    statuses = []
    for _ in range(MOST_GUESSES):
        answer = await log_in(http, email or f"{secrets.token_hex(4)}@example.com")
        statuses.append(answer.status_code)
        if answer.status_code == 429:
            assert answer.json()["code"] == "rate_limited"
            assert int(answer.headers["retry-after"]) >= 1
            break
    return statuses


def lengthen_waits(settings: Settings, address: str) -> None:
    """As if many more had failed from there just now: the first waits are short, and a machine may be slow."""
    with connect(settings) as database:
        query = (
            "UPDATE failed_attempts SET failures = failures + 20, last_at = now() WHERE failures > 0 AND key LIKE %s"
        )
        assert database.execute(query, [f"%/{address}"]).rowcount


@pytest.fixture
async def ada(admin: GpuaasClient) -> User:
    return await admin.users.create(f"ada-{secrets.token_hex(4)}@example.com", PASSWORD)


async def test_an_account_is_guessed_at_slowly_and_its_person_still_gets_in(
    settings: Settings, ada: User, addresses: Iterator[str]
) -> None:
    nobody = f"nobody-{secrets.token_hex(4)}@example.com"
    with limited_api(settings).serving() as url, limited_api(settings).serving() as second_url:
        eve, home, stranger = next(addresses), next(addresses), next(addresses)
        async with from_address(url, eve) as guessing:
            known = await guess_until_limited(guessing, ada.email)
            assert known[:FREE_OF_ACCOUNT] == [401] * FREE_OF_ACCOUNT
            assert known[-1] == 429
            lengthen_waits(settings, eve)
            # The right password is not looked at either: a guess that waits says nothing.
            assert (await log_in(guessing, ada.email.upper(), PASSWORD)).status_code == 429
        async with from_address(second_url, eve) as guessing:
            # Counted for all processes.
            assert (await log_in(guessing, ada.email, PASSWORD)).status_code == 429
        async with from_address(second_url, home) as at_home:
            assert (await log_in(at_home, ada.email, PASSWORD)).status_code == 200
        async with from_address(url, stranger) as guessing:
            unknown = await guess_until_limited(guessing, nobody)
    # An e-mail that nobody has is treated alike: neither the answers nor the limits tell.
    assert unknown[:FREE_OF_ACCOUNT] == [401] * FREE_OF_ACCOUNT
    assert unknown[-1] == 429


async def test_an_address_that_tries_many_e_mails_waits_and_its_neighbours_do_not(
    settings: Settings, ada: User, admin: GpuaasClient, addresses: Iterator[str]
) -> None:
    bob = await admin.users.create(f"bob-{secrets.token_hex(4)}@example.com", PASSWORD)
    shared, elsewhere = next(addresses), next(addresses)
    with limited_api(settings).serving() as url:
        async with from_address(url, shared) as office, from_address(url, elsewhere) as home:
            assert (await log_in(office, ada.email, PASSWORD)).status_code == 200
            flood = await guess_until_limited(office)
            assert (len(flood) > FREE_OF_ADDRESS, flood[-1]) == (True, 429)
            lengthen_waits(settings, shared)
            # Ada logged in from there before: what others do there does not count against her.
            assert (await log_in(office, ada.email, PASSWORD)).status_code == 200
            # Bob has to wait there, for a minute at most, and gets in from anywhere else.
            waiting = await log_in(office, bob.email, PASSWORD)
            assert waiting.status_code == 429
            assert int(waiting.headers["retry-after"]) <= 60
            assert (await log_in(home, bob.email, PASSWORD)).status_code == 200


async def test_a_flood_is_not_hashed_and_a_rightful_log_in_goes_through(
    settings: Settings, ada: User, addresses: Iterator[str]
) -> None:
    with limited_api(settings, password_memory_kib="8192").serving() as url:
        async with from_address(url, next(addresses)) as flooding, from_address(url, next(addresses)) as home:
            emails = [f"{secrets.token_hex(4)}@example.com" for _ in range(60)]
            flood = [asyncio.create_task(log_in(flooding, email)) for email in emails]
            right = await log_in(home, ada.email, PASSWORD)
            statuses = [answer.status_code for answer in await asyncio.gather(*flood)]
    assert right.status_code == 200
    # Two are hashed at once, so that one more may be looked at than is free.
    assert statuses.count(401) <= FREE_OF_ADDRESS + 1 + 12
    assert statuses.count(429) == len(statuses) - statuses.count(401)


async def test_forwarded_addresses_count_only_where_a_proxy_of_ours_sends_them(
    settings: Settings, ada: User, admin: GpuaasClient, addresses: Iterator[str]
) -> None:
    proxy = next(addresses)

    async def entry_of(url: str, forwarded: str) -> str:
        async with from_address(url, proxy, **{"X-Forwarded-For": forwarded}) as http:
            answer = await log_in(http, ada.email, PASSWORD)
            assert answer.status_code == 200
        correlation_id = answer.headers["x-correlation-id"]
        (entry,) = await admin.audit.list(correlation_id=correlation_id).all()
        assert entry.action == "auth.login"
        return entry.address

    with ApiProcess(settings).serving() as url:
        assert await entry_of(url, "203.0.113.9") == proxy
    with limited_api(settings, trusted_proxies=f"192.0.2.0/24,{proxy}").serving() as url:
        assert await entry_of(url, "198.51.100.1, 203.0.113.9, 192.0.2.8") == "203.0.113.9"
        assert await entry_of(url, "203.0.113.9, <script>") == proxy
        assert await entry_of(url, "x" * 4_000) == proxy
        # And the limits go by it, too.
        async with from_address(url, proxy, **{"X-Forwarded-For": "203.0.113.66"}) as guessing:
            assert (await guess_until_limited(guessing))[-1] == 429
        async with from_address(url, proxy, **{"X-Forwarded-For": "203.0.113.67"}) as other:
            assert (await log_in(other, "nobody@example.com")).status_code == 401


def test_a_wrong_list_of_proxies_does_not_start(settings: Settings) -> None:
    refused = ApiProcess(settings, trusted_proxies="10.0.0.0/8,everybody").run("serve")
    assert refused.returncode != 0
    assert "'everybody' is not a network" in refused.stderr


async def test_failed_log_ins_are_audited_without_what_was_typed(
    settings: Settings, ada: User, admin: GpuaasClient, addresses: Iterator[str]
) -> None:
    typed = f"my-secret-{secrets.token_hex(8)}"
    first, second = next(addresses), next(addresses)
    async with from_address(settings.api_url, first, **{"User-Agent": "guesser/1"}) as http:
        known = await log_in(http, ada.email, typed)
        for _ in range(3):
            await log_in(http, ada.email, typed)
    async with from_address(settings.api_url, second) as http:
        unknown = await log_in(http, typed, typed)
    assert known.status_code == unknown.status_code == 401

    async def entries_of(answer: httpx.Response) -> list[tuple[str, str, str]]:
        correlation_id = answer.headers["x-correlation-id"]
        found = await admin.audit.list(correlation_id=correlation_id).all()
        assert all((e.principal_id, e.outcome, e.service) == ("anonymous", "denied", "sessions") for e in found)
        return [(entry.action, entry.target, f"{entry.address} {entry.user_agent}") for entry in found]

    found = await until(lambda: entries_of(known), "the failed log-in is in the audit trail")
    # The others of its minute come at its end, as one entry.
    assert found == [("auth.login_failed", ada.id, f"{first} guesser/1")]
    ((_, target, _),) = await until(lambda: entries_of(unknown), "the other one is in the audit trail")
    assert target.startswith("unknown/")
    assert typed not in dump(settings)


async def test_a_flood_of_failures_is_a_handful_of_entries(settings: Settings, addresses: Iterator[str]) -> None:
    address = next(addresses)
    process = ApiProcess(settings)
    with process.serving() as url:
        async with from_address(url, address) as http:
            await asyncio.gather(*(log_in(http, f"{number}@example.com") for number in range(60)))
        # It is asked to end, and writes the rest of the minute.
        process.end(signal.SIGTERM)
    with connect(settings) as database:
        rows = database.execute(
            "SELECT detail FROM audit_entries WHERE action = 'auth.login_failed' AND address = %s ORDER BY seq",
            (address,),
        ).fetchall()
    # Two for each minute that it took.
    assert (sum(detail["count"] for (detail,) in rows), len(rows) <= 4) == (60, True)


async def test_other_things_that_can_be_guessed_have_the_same_limits(
    settings: Settings, world: World, addresses: Iterator[str]
) -> None:
    admin = world.admin
    eve = await admin.users.create(f"eve-{secrets.token_hex(4)}@example.com", PASSWORD)
    with limited_api(settings).serving() as url:
        async with from_address(url, address := next(addresses)) as http:
            token = (await log_in(http, eve.email, PASSWORD)).json()["access_token"]
            logged_in = {"Authorization": f"Bearer {token}"}
            change = {"current_password": "a wrong password", "new_password": "another long password"}
            assert await limited(lambda: http.post("/v1/auth/password", json=change, headers=logged_in)) == 422
            lengthen_waits(settings, address)
            right = {**change, "current_password": PASSWORD}
            assert (await http.post("/v1/auth/password", json=right, headers=logged_in)).status_code == 429
            code = {"user_code": "BCDF-GHJK"}
            assert await limited(lambda: http.get("/v1/oauth/device", params=code, headers=logged_in)) == 404
            approve = "/v1/oauth/device/approve"
            assert await limited(lambda: http.post(approve, json=code, headers=logged_in)) in {0, 404}
            form = {"grant_type": CLIENT_CREDENTIALS, "client_id": world.account.id, "client_secret": "wrong"}
            assert await limited(lambda: http.post("/v1/oauth/token", data=form)) == 401
            # Nobody else of that address waits for it.
            other = {**form, "client_id": "sva_another"}
            assert (await http.post("/v1/oauth/token", data=other)).status_code == 401

        async def told() -> bool:
            actions = {entry.action async for entry in admin.audit.list(outcome="denied")}
            return {"auth.password_confirm_failed", "auth.device_code_failed", "auth.client_failed"} <= actions

        await until(told, "all of that is in the audit trail")
    # The controller of the same account, elsewhere, noticed nothing.
    assert (await world.controller.fetch_token()).access_token


async def test_a_wrong_join_token_is_audited(settings: Settings, admin: GpuaasClient, addresses: Iterator[str]) -> None:
    body = {"join_token": "gpuaas-join-guessed", "public_key_pem": make_key()[1]}
    async with from_address(settings.api_url, next(addresses)) as http:
        answer = await http.post("/v1/nodes/enrol", json=body)
        assert answer.json()["code"] == "join_token_invalid"

    async def told() -> list[str]:
        entries = await admin.audit.list(correlation_id=answer.headers["x-correlation-id"]).all()
        return [entry.action for entry in entries]

    assert await until(told, "it is in the audit trail") == ["node.enrol_failed"]


async def limited(ask: Callable[[], Awaitable[httpx.Response]]) -> int:
    """Ask until it is 429; returns what it was before."""
    before = 0
    for _ in range(40):
        answer = await ask()
        if answer.status_code == 429:
            assert int(answer.headers["retry-after"]) >= 1
            return before
        before = answer.status_code
    raise AssertionError(f"forty times {before}")
