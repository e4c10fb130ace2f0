"""The conventions that every route keeps: problems, correlation, idempotency, permissions."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from gpuaas_contract.identity import Role
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials, ServiceAccountCredentials
from gpuaas_sdk.errors import ForbiddenError, NotFoundError, UnauthenticatedError
from gpuaas_stack.settings import Settings
from tests.support.processes import ApiProcess
from tests.support.world import World, make_key, sign_assertion

ANONYMOUS = {
    "log_in",
    "open_session",
    "exchange_token",
    "start_device_authorization",
    "revoke_token",
    "get_authorization_server_metadata",
    "get_public_keys",
    "check_registry_token",
    "enrol_node",
    "is_alive",
    "is_ready",
    "read_metrics",
    "list_receipt_keys",
}


async def test_every_route_but_the_anonymous_ones_asks_who_is_there(settings: Settings) -> None:
    async with httpx.AsyncClient(base_url=settings.api_url, timeout=60) as http:
        document = (await http.get("/openapi.json")).json()
        checked = 0
        for path, methods in document["paths"].items():
            for method, operation in methods.items():
                assert operation["x-permission"], path
                if operation["x-permission"] == "anonymous":
                    assert operation["operationId"] in ANONYMOUS, path
                    continue
                url = path.replace("{", "").replace("}", "")
                for headers in ({}, {"Authorization": "Bearer bogus"}, {"Authorization": "Bearer a.b.c"}):
                    answer = await http.request(method, url, headers=headers)
                    assert answer.status_code == 401, (method, path, answer.text)
                    assert answer.headers["content-type"] == "application/problem+json"
                    assert answer.json()["code"] == "unauthenticated"
                    checked += 1
    assert checked > 80


async def test_problems_have_one_shape(settings: Settings, admin: GpuaasClient) -> None:
    token = (await admin.fetch_token()).access_token
    headers = {"Authorization": f"Bearer {token}", "X-Correlation-Id": "my-own-correlation"}
    async with httpx.AsyncClient(base_url=settings.api_url, headers=headers) as http:
        cases = [
            (await http.get("/v1/nothing"), 404, "not_found"),
            (await http.delete("/v1/tenants"), 405, "method_not_allowed"),
            (await http.post("/v1/tenants", content=b"{not json"), 422, "invalid_request"),
            (await http.post("/v1/tenants", json={"name": "UPPER; rm -rf"}), 422, "invalid_request"),
            (await http.post("/v1/tenants", json={"name": "fine", "colour": "red"}), 422, "invalid_request"),
            (await http.get("/v1/tenants/ten_%00"), 422, "invalid_request"),
            (await http.get("/v1/tenants", params={"cursor": "ÿ"}), 422, "cursor_invalid"),
            (await http.get("/v1/changes", params={"since": "garbled"}), 422, "cursor_invalid"),
            (await http.get("/v1/changes", params={"wait": 31_536_000}), 422, "invalid_request"),
            (await http.get("/v1/allocations/alc_nowhere"), 404, "not_found"),
        ]
    for answer, status, code in cases:
        assert answer.status_code == status, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["x-correlation-id"] == "my-own-correlation"
        problem = answer.json()
        assert (problem["code"], problem["correlation_id"]) == (code, "my-own-correlation")
        assert problem["detail"]
        assert "Traceback" not in answer.text


async def test_one_key_has_one_effect_also_in_a_race(settings: Settings, admin: GpuaasClient, world: World) -> None:
    token = (await admin.fetch_token()).access_token
    headers = {"Authorization": f"Bearer {token}", "Idempotency-Key": f"race-{world.project.id}"}
    body = {"tenant_id": world.tenant.id, "name": "raced"}
    async with httpx.AsyncClient(base_url=settings.api_url, headers=headers, timeout=30) as http:
        answers = await asyncio.gather(*(http.post("/v1/projects", json=body) for _ in range(32)))
        assert {answer.status_code for answer in answers} <= {201, 409}
        made = {answer.json()["id"] for answer in answers if answer.status_code == 201}
        assert len(made) == 1
        assert {a.json()["code"] for a in answers if a.status_code == 409} <= {"idempotency_in_flight"}
        again = await http.post("/v1/projects", json=body)
        assert (again.status_code, again.json()["id"]) == (201, made.pop())
        assert again.headers["idempotency-replayed"] == "true"
        other = await http.post("/v1/projects", json={**body, "name": "another"})
        assert (other.status_code, other.json()["code"]) == (422, "idempotency_conflict")


async def test_other_tenants_do_not_exist_for_a_project_admin(settings: Settings, world: World) -> None:
    admin = world.admin
    password = "a long enough password"
    user = await admin.users.create(f"ada-{world.app_slug}@example.com", password)
    await admin.memberships.create(user.id, Role.PROJECT_ADMIN, project_id=world.project.id)
    stranger = await admin.tenants.create(f"other-{world.app_slug}")
    hidden = await admin.projects.create(stranger.id, "hidden")
    async with GpuaasClient(settings.api_url, PasswordCredentials(user.email, password)) as ada:
        assert [project.id async for project in ada.projects.list()] == [world.project.id]
        assert [tenant.id async for tenant in ada.tenants.list()] == [world.tenant.id]
        with pytest.raises(NotFoundError):
            await ada.projects.get(hidden.id)
        with pytest.raises(NotFoundError):
            await ada.allocations.create(hidden.id, "mine")
        with pytest.raises(ForbiddenError):
            await ada.tenants.create("mine")
        with pytest.raises(ForbiddenError):
            await ada.projects.create(world.tenant.id, "mine")
        with pytest.raises(ForbiddenError):
            await ada.users.create("x@example.com", password)
        assert (await ada.allocations.create(world.project.id, "mine")).project_id == world.project.id


async def test_wrong_passwords_and_forged_assertions_are_refused(settings: Settings, world: World) -> None:
    async with GpuaasClient(settings.api_url, PasswordCredentials("admin@gpuaas.example", "wrong")) as client:
        with pytest.raises(UnauthenticatedError):
            await client.principal()
    forger, _ = make_key()
    async with GpuaasClient(settings.api_url, ServiceAccountCredentials(world.account.id, forger)) as client:
        with pytest.raises(UnauthenticatedError):
            await client.principal()


async def test_an_assertion_works_once_and_not_for_long(settings: Settings, admin: GpuaasClient, world: World) -> None:
    private, public = make_key()
    account = await admin.service_accounts.create(world.project.id, "automat", public)

    async def exchange(assertion: str) -> int:
        form = {
            "grant_type": "client_credentials",
            "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
            "client_assertion": assertion,
        }
        async with httpx.AsyncClient(base_url=settings.api_url) as http:
            return (await http.post("/v1/oauth/token", data=form)).status_code

    assertion = sign_assertion(private, account.id, "gpuaas")
    assert await exchange(assertion) == 200
    assert await exchange(assertion) == 401
    assert await exchange(sign_assertion(private, account.id, "elsewhere")) == 401
    assert await exchange(sign_assertion(private, account.id, "gpuaas", exp=4_000_000_000)) == 401
    assert await exchange(sign_assertion(private, account.id, "gpuaas", exp=1_000_000_000)) == 401


async def test_resources_have_etags_and_changes_can_depend_on_them(admin: GpuaasClient, world: World) -> None:
    allocation = await world.allocation()
    headers = {"Authorization": f"Bearer {(await admin.fetch_token()).access_token}"}
    path = f"/v1/allocations/{allocation.id}"
    async with httpx.AsyncClient(base_url=admin.api_url, headers=headers) as http:
        read = await http.get(path)
        assert read.headers["etag"] == f'"{allocation.revision}"'
        assert (await http.get(path, headers={"If-None-Match": read.headers["etag"]})).status_code == 304
        for wrong in ('"1"', '"999"', "nonsense"):
            stale = await http.post(f"{path}/release", headers={"If-Match": wrong})
            assert (stale.status_code, stale.json()["code"]) == (412, "revision_mismatch")
        assert (await admin.allocations.get(allocation.id)).status == "active"
        fresh = await http.post(f"{path}/release", headers={"If-Match": read.headers["etag"]})
        assert fresh.status_code == 200
        assert fresh.headers["etag"] == f'"{fresh.json()["revision"]}"'


async def test_a_trace_goes_on_and_gives_the_correlation_id(settings: Settings) -> None:
    trace = "0af7651916cd43dd8448eb211c80319c"
    async with httpx.AsyncClient(base_url=settings.api_url) as http:
        answer = await http.get("/healthz", headers={"traceparent": f"00-{trace}-b7ad6b7169203331-01"})
        assert answer.headers["x-correlation-id"] == trace
        assert answer.headers["traceparent"].startswith(f"00-{trace}-")
        assert "b7ad6b7169203331" not in answer.headers["traceparent"]
        bad = await http.get("/healthz", headers={"traceparent": "00-garbled", "X-Correlation-Id": "x\ty"})
        assert bad.headers["x-correlation-id"].startswith("cor_")
        assert "traceparent" not in bad.headers


async def test_large_bodies_are_refused_announced_or_not(settings: Settings) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for _ in range(40):
            yield b" " * 100_000

    async with httpx.AsyncClient(base_url=settings.api_url) as http:
        for content in (b" " * 4_000_000, chunks()):
            answer = await http.post("/v1/auth/login", content=content, headers={"content-type": "application/json"})
            assert (answer.status_code, answer.json()["code"]) == (413, "too_large")


async def test_guessing_passwords_is_slowed_down(settings: Settings) -> None:
    body = {"email": "victim@example.com", "password": "guess"}
    with ApiProcess(settings, logins_per_minute="60").serving() as url:
        async with httpx.AsyncClient(base_url=url, timeout=60) as http:
            answers = await asyncio.gather(*(http.post("/v1/auth/login", json=body) for _ in range(70)))
    limited = [answer for answer in answers if answer.status_code == 429]
    assert limited
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in limited)
    assert {answer.status_code for answer in answers} == {401, 429}
