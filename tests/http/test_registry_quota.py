"""Quotas of apps and projects in the registry, the largest file, and the space that is left for the database."""

import secrets
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from gpuaas_contract.problems import Code
from gpuaas_platform.settings import Settings as PlatformSettings
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.credentials import PasswordCredentials
from gpuaas_sdk.errors import ApiError, QuotaExceededError
from gpuaas_sdk.retry import NO_RETRY
from gpuaas_stack.settings import Settings
from tests.support.artifacts import push
from tests.support.processes import ApiProcess
from tests.support.services import admin_credentials

MIB = 1 << 20
ONE_MIB = str(1 / 1024)


def client_of(settings: Settings, url: str) -> GpuaasClient:
    return GpuaasClient(url, PasswordCredentials(*admin_credentials(settings)), retry=NO_RETRY)


@pytest.mark.parametrize("seen", [True, False], ids=["on its disk", "by what is registered"])
async def test_an_owner_has_a_quota_and_others_are_not_touched(settings: Settings, seen: bool) -> None:
    hidden: dict[str, Any] = {} if seen else {"registry_data": "", "registry_secret_file": ""}
    full, other = f"full-{secrets.token_hex(4)}", f"other-{secrets.token_hex(4)}"
    with ApiProcess(settings, artifact_owner_gib=ONE_MIB, **hidden).serving() as url:
        async with client_of(settings, url) as admin:
            kept = await push(admin, secrets.token_bytes(MIB // 2), app_slug=full)
            with pytest.raises(QuotaExceededError, match="would have") as refused:
                await push(admin, secrets.token_bytes(MIB), app_slug=full)
            assert refused.value.problem.context["limit"] == MIB
            assert [found.id async for found in admin.artifacts.list(app_slug=full)] == [kept.id]
            if seen:
                # The bytes are there until garbage is collected, so that nothing more is let in.
                with pytest.raises(QuotaExceededError, match=f"app {full} has"):
                    await push(admin, b"more", app_slug=full)
            assert (await push(admin, b"fits", app_slug=other)).size == 4
            # Whoever looks is let in: only pushing is left out.
            token = (await admin.fetch_token()).access_token
            async with httpx.AsyncClient(base_url=url, auth=("any", token)) as http:
                looked = await http.get("/v1/registry/token", params={"scope": f"repository:apps/{full}/packages:pull"})
                assert looked.status_code == 200


async def test_the_largest_file(settings: Settings) -> None:
    owner = f"large-{secrets.token_hex(4)}"
    with ApiProcess(settings, artifact_largest_gib=ONE_MIB).serving() as url:
        async with client_of(settings, url) as admin:
            content = secrets.token_bytes(MIB + 1)
            with pytest.raises(ApiError, match="split it") as refused:
                await push(admin, content, app_slug=owner)
            assert refused.value.problem.code == Code.TOO_LARGE
            assert [found async for found in admin.artifacts.list(app_slug=owner)] == []
            assert (await push(admin, content[:MIB], app_slug=owner)).size == MIB


@pytest.mark.parametrize(
    ("setting", "words"), [("registry_reserve_gib", "kept for the platform"), ("registry_total_gib", "is full")]
)
async def test_a_registry_without_room_takes_nothing_and_gives_what_it_has(
    settings: Settings, admin: GpuaasClient, setting: str, words: str
) -> None:
    owner = f"room-{secrets.token_hex(4)}"
    made = await push(admin, b"there before", app_slug=owner)
    chosen: dict[str, Any] = {setting: {"registry_reserve_gib": "1000000000", "registry_total_gib": "0"}[setting]}
    with ApiProcess(settings, **chosen).serving() as url:
        async with client_of(settings, url) as client:
            with pytest.raises(ApiError, match=words) as refused:
                await push(client, b"more", app_slug=owner)
            assert refused.value.problem.retryable
            assert (await client.artifacts.get(made.id)).size == made.size
            await client.artifacts.delete(made.id)
            token = await client.registry.token(made.repository)
            assert token.token


@pytest.mark.parametrize(
    "name", ["artifact_largest_gib", "artifact_owner_gib", "registry_total_gib", "registry_reserve_gib"]
)
@pytest.mark.parametrize("value", ["", "-1", "much", "nan", "inf"])
def test_settings_that_make_no_sense_are_named(monkeypatch: pytest.MonkeyPatch, name: str, value: str) -> None:
    monkeypatch.setenv("GPUAAS_DATABASE_URL", "postgresql://nowhere")
    monkeypatch.setenv("GPUAAS_VAULT_ADDR", "http://nowhere")
    monkeypatch.setenv("GPUAAS_VAULT_TOKEN_FILE", "/nowhere")
    monkeypatch.setenv(f"GPUAAS_{name.upper()}", value)
    with pytest.raises(ValidationError, match=name):
        PlatformSettings()
