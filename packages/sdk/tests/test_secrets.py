"""Secrets under a lease: each is fetched once, shown nowhere, and a lost one is waited for."""

import copy
import pickle
from typing import Any

import httpx
import pytest

from gpuaas_sdk.errors import TransportError
from gpuaas_sdk.runtime.errors import RetryLater
from gpuaas_sdk.runtime.secrets import LeaseSecrets
from gpuaas_sdk.secret_value import SecretValue
from gpuaas_sdk.testing import ScriptedPlatform, problem

VALUE = {"owner_id": "crd_1", "version": 2, "encoding": "base64", "value": "aHVzaA=="}


def delivery(token: str | None) -> httpx.Response:
    content: dict[str, Any] = {
        "id": "sdl_1",
        "owner_id": "crd_1",
        "version": 2,
        "operation_id": "op_1",
        "expires_at": "2026-01-01T00:00:00Z",
    }
    return httpx.Response(201, json={**content, "wrapping_token": token})


async def test_fetched_once_per_lease() -> None:
    platform = ScriptedPlatform(delivery("s.once"), httpx.Response(200, json=VALUE))
    async with platform.client() as client:
        held = LeaseSecrets(client, "op_1", 7)
        first = await held.credential("crd_1")
        assert await held.credential("crd_1") is first
    assert first.reveal() == b"hush"
    assert [request.url.path for request in platform.requests] == [
        "/v1/credentials/crd_1/deliveries",
        "/v1/secret-deliveries/sdl_1/unwrap",
    ]


async def test_a_repeated_answer_without_its_token_is_asked_for_anew() -> None:
    platform = ScriptedPlatform(delivery(None), delivery("s.once"), httpx.Response(200, json=VALUE))
    async with platform.client() as client:
        assert (await LeaseSecrets(client, "op_1", 7).credential("crd_1")).reveal_text() == "hush"
    keys = [request.headers["idempotency-key"] for request in platform.requests[:2]]
    assert keys[0] != keys[1]


@pytest.mark.parametrize("code", ["already_delivered", "delivery_used"])
async def test_what_the_lease_had_and_lost_comes_with_the_next_one(code: str) -> None:
    platform = ScriptedPlatform(delivery("s.once"), problem(code, 409))
    async with platform.client() as client:
        with pytest.raises(RetryLater):
            await LeaseSecrets(client, "op_1", 7).credential("crd_1")


async def test_an_unwrap_is_not_sent_twice() -> None:
    platform = ScriptedPlatform(delivery("s.once"), httpx.ReadError("cut"))
    async with platform.client() as client:
        with pytest.raises(TransportError):
            await LeaseSecrets(client, "op_1", 7).credential("crd_1")
    assert len(platform.requests) == 2


def test_a_value_shows_itself_to_nobody() -> None:
    value = SecretValue("sec_1", 1, b"hush")
    assert "hush" not in "".join([str(value), repr(value), f"{value}", f"{value:>40}", repr({"a": value})])
    with pytest.raises(TypeError):
        pickle.dumps(value)
    with pytest.raises(TypeError):
        copy.copy(value)
