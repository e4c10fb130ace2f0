"""Actions offered after a refusal: routes that this caller may call, the same for what is hidden and absent."""

import secrets

import httpx
import pytest

from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_sdk.errors import ApiError
from gpuaas_stack.settings import Settings

PASSWORD = "a long enough password"


async def test_a_taken_name_and_an_unknown_object_point_to_the_list(admin: GpuaasClient) -> None:
    name = f"t-{secrets.token_hex(4)}"
    await admin.tenants.create(name)
    with pytest.raises(ApiError) as taken:
        await admin.tenants.create(name)
    assert [(a.action, a.method, a.href) for a in taken.value.allowed_actions] == [("list", "GET", "/v1/tenants")]
    with pytest.raises(ApiError) as unknown:
        await admin.nodes.get("nod_00000000000000000000000001")
    assert [a.href for a in unknown.value.allowed_actions] == ["/v1/nodes"]


async def test_who_may_not_call_a_route_is_not_sent_there(admin: GpuaasClient, settings: Settings) -> None:
    email = f"eve-{secrets.token_hex(4)}@example.com"
    await admin.users.create(email, PASSWORD)
    async with GpuaasClient(settings.api_url, PasswordCredentials(email, PASSWORD)) as eve:
        with pytest.raises(ApiError) as refused:
            await eve.nodes.get("nod_00000000000000000000000001")
    assert "/v1/nodes" not in [action.href for action in refused.value.allowed_actions]


async def test_without_a_login(settings: Settings) -> None:
    async with httpx.AsyncClient(base_url=settings.api_url) as http:
        answer = await http.get("/v1/tenants")
        strange = await http.get("/v1/%3Cscript%3E/x")
    assert [each["action"] for each in answer.json()["allowed_actions"]] == ["log_in"]
    assert "script" not in str(strange.json()["allowed_actions"])
