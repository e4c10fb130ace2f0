"""Requests that are refused before they cost anything: too many of them, and parameters that no route has."""

import asyncio
from collections import Counter

import httpx

from gpuaas_contract.identity import Role
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_stack.settings import Settings
from tests.support.processes import ApiProcess

PASSWORD = "a long enough password"


async def test_one_principal_is_slowed_down_and_no_other(settings: Settings, admin: GpuaasClient) -> None:
    ada = await admin.users.create("ada@example.com", PASSWORD)
    await admin.memberships.create(ada.id, Role.PLATFORM_ADMIN)
    async with GpuaasClient(settings.api_url, PasswordCredentials(ada.email, PASSWORD)) as client:
        eager = {"Authorization": f"Bearer {(await client.fetch_token()).access_token}"}
    calm = {"Authorization": f"Bearer {(await admin.fetch_token()).access_token}"}
    with ApiProcess(settings, requests_per_second="0.01").serving() as url:
        async with httpx.AsyncClient(base_url=url) as http:
            answers = await asyncio.gather(*(http.get("/v1/tenants", headers=eager) for _ in range(8)))
            others = await http.get("/v1/tenants", headers=calm)
    # The burst is one request at least; the next one comes after a hundred seconds.
    assert Counter(answer.status_code for answer in answers) == {200: 1, 429: 7}
    assert others.status_code == 200
    for answer in answers:
        if answer.status_code == 429:
            assert answer.json()["code"] == "rate_limited"
            assert answer.headers["content-type"] == "application/problem+json"
            assert int(answer.headers["retry-after"]) >= 1


async def test_a_parameter_that_no_route_has_is_refused(settings: Settings, admin: GpuaasClient) -> None:
    tenant = await admin.tenants.create("acme")
    token = {"Authorization": f"Bearer {(await admin.fetch_token()).access_token}"}
    async with httpx.AsyncClient(base_url=settings.api_url, headers=token) as http:
        wrong = await http.get("/v1/projects", params={"tenant": tenant.id, "tenant_id": tenant.id})
        assert (wrong.status_code, wrong.json()["code"]) == (422, "invalid_request")
        assert [error["pointer"] for error in wrong.json()["errors"]] == ["query/tenant"]
        assert "tenant_id" in wrong.json()["detail"]
        none = await http.get(f"/v1/tenants/{tenant.id}", params={"expand": "all"})
        assert "takes no parameters" in none.json()["detail"]
        changed = await http.patch(f"/v1/tenants/{tenant.id}", params={"dry_run": "true"}, json={"title": "x"})
        assert changed.status_code == 422
        assert (await admin.tenants.get(tenant.id)).title == tenant.title
        right = await http.get("/v1/projects", params={"tenant_id": tenant.id, "limit": 5})
        assert right.status_code == 200
