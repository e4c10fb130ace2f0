"""The client's requests, and when it repeats them."""

import json
from pathlib import Path

import httpx
import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from joserfc import jwt
from joserfc.jwk import OKPKey

from gpuaas_sdk import (
    LeaseHeldError,
    PasswordCredentials,
    ProtocolError,
    ServiceAccountCredentials,
    StaleLeaseError,
    TransportError,
    UnauthenticatedError,
    UnavailableError,
)
from gpuaas_sdk.testing import ScriptedPlatform, problem

AT = "2026-01-01T00:00:00Z"


def tenant(name: str) -> dict[str, object]:
    return {
        "id": f"ten_{name}",
        "name": name,
        "title": name,
        "revision": 1,
        "created_at": AT,
        "updated_at": AT,
    }


def ok(body: object) -> httpx.Response:
    return httpx.Response(200, json=body)


async def test_a_mutation_carries_token_idempotency_key_and_correlation_id() -> None:
    platform = ScriptedPlatform(ok(tenant("acme")))
    async with platform.client() as client:
        with client.correlation("cor_mine"):
            await client.tenants.create("acme")
    (request,) = platform.requests
    assert request.url.path == "/v1/tenants"
    assert request.headers["authorization"] == "Bearer t0ken"
    assert request.headers["x-correlation-id"] == "cor_mine"
    assert len(request.headers["idempotency-key"]) >= 16
    assert json.loads(request.content) == {"name": "acme"}


async def test_calls_outside_a_block_have_correlation_ids_of_their_own() -> None:
    platform = ScriptedPlatform(ok(tenant("acme")))
    async with platform.client() as client:
        await client.tenants.get("ten_acme")
        await client.tenants.get("ten_acme")
    first, second = (request.headers["x-correlation-id"] for request in platform.requests)
    assert first.startswith("cor_")
    assert first != second


@pytest.mark.parametrize(
    "failure",
    [
        httpx.ConnectError("refused"),
        httpx.ReadError("cut"),
        httpx.ReadTimeout("late"),
        problem("unavailable", 503),
        httpx.Response(429, headers={"retry-after": "0"}),
        problem("idempotency_in_flight", 409),
    ],
)
async def test_a_mutation_is_sent_again_with_the_same_key(failure: httpx.Response | Exception) -> None:
    platform = ScriptedPlatform(failure, failure, ok(tenant("acme")))
    async with platform.client() as client:
        assert (await client.tenants.create("acme")).id == "ten_acme"
    keys = {request.headers["idempotency-key"] for request in platform.requests}
    correlations = {request.headers["x-correlation-id"] for request in platform.requests}
    assert (len(platform.requests), len(keys), len(correlations)) == (3, 1, 1)


@pytest.mark.parametrize(
    ("answer", "error"),
    [(problem("stale_lease", 409), StaleLeaseError), (problem("lease_held", 409), LeaseHeldError)],
)
async def test_a_conflict_is_never_sent_again(answer: httpx.Response, error: type[Exception]) -> None:
    platform = ScriptedPlatform(answer)
    async with platform.client() as client:
        with pytest.raises(error):
            await client.operations.claim("op_1", "me")
    assert len(platform.requests) == 1


async def test_retries_end() -> None:
    platform = ScriptedPlatform(problem("unavailable", 503))
    async with platform.client() as client:
        with pytest.raises(UnavailableError):
            await client.tenants.get("ten_acme")
    assert len(platform.requests) == 4

    platform = ScriptedPlatform(httpx.ConnectError("refused"))
    async with platform.client() as client:
        with pytest.raises(TransportError, match=r"cannot reach http://platform.test: refused"):
            await client.tenants.get("ten_acme")


async def test_retry_after_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr("gpuaas_sdk.transport.asyncio.sleep", sleep)
    platform = ScriptedPlatform(httpx.Response(503, headers={"retry-after": "7"}), ok(tenant("acme")))
    async with platform.client() as client:
        await client.tenants.get("ten_acme")
    assert pauses == [7.0]


async def test_a_log_in_that_has_to_wait_long_says_so_instead_of_waiting() -> None:
    refused = httpx.Response(429, headers={"retry-after": "60"}, json=problem("rate_limited", 429).json())
    platform = ScriptedPlatform(refused)
    async with platform.client(PasswordCredentials("ada@example.com", "wrong")) as client:
        with pytest.raises(UnavailableError):
            await client.tenants.get("ten_acme")
    assert [request.url.path for request in platform.requests] == ["/v1/auth/login"]


async def test_an_answer_of_another_shape_is_said() -> None:
    platform = ScriptedPlatform(ok({"hello": 1}))
    async with platform.client() as client:
        with pytest.raises(ProtocolError, match="is not a Tenant"):
            await client.tenants.get("ten_acme")


async def test_pages_are_followed() -> None:
    platform = ScriptedPlatform(
        ok({"items": [tenant("a"), tenant("b")], "next_cursor": "c1"}), ok({"items": [tenant("c")]})
    )
    async with platform.client() as client:
        names = [item.name async for item in client.tenants.list(limit=2)]
    assert names == ["a", "b", "c"]
    assert [str(request.url.query, "ascii") for request in platform.requests] == [
        "limit=2",
        "limit=2&cursor=c1",
    ]


async def test_passwords_reach_the_platform_and_not_a_repr() -> None:
    platform = ScriptedPlatform(ok({"id": "usr_1", "email": "a@b", "revision": 1, "created_at": AT, "updated_at": AT}))
    async with platform.client() as client:
        await client.users.create("a@b", "correct horse battery")
    assert json.loads(platform.requests[0].content)["password"] == "correct horse battery"
    assert "horse" not in repr(PasswordCredentials("a@b", "horse"))


async def test_nulls_inside_an_apps_own_inputs_are_kept() -> None:
    platform = ScriptedPlatform(problem("invalid_request", 422))
    async with platform.client() as client:
        with pytest.raises(Exception, match="invalid_request"):
            await client.instances.request("ins_1", "deploy", input={"a": None, "b": {"c": None}})
    assert json.loads(platform.requests[0].content)["input"] == {"a": None, "b": {"c": None}}


def token(value: str, expires_in: int = 600) -> httpx.Response:
    return ok({"access_token": value, "expires_in": expires_in})


async def test_a_token_is_fetched_once_and_renewed_once_after_a_refusal() -> None:
    platform = ScriptedPlatform(
        token("one"), problem("unauthenticated", 401), token("two"), ok(tenant("a")), ok(tenant("a"))
    )
    async with platform.client(PasswordCredentials("a@b", "secret")) as client:
        await client.tenants.get("ten_a")
        await client.tenants.get("ten_a")
    assert [(r.url.path, r.headers.get("authorization")) for r in platform.requests] == [
        ("/v1/auth/login", None),
        ("/v1/tenants/ten_a", "Bearer one"),
        ("/v1/auth/login", None),
        ("/v1/tenants/ten_a", "Bearer two"),
        ("/v1/tenants/ten_a", "Bearer two"),
    ]


async def test_wrong_credentials_are_tried_once() -> None:
    platform = ScriptedPlatform(problem("invalid_credentials", 401))
    async with platform.client(PasswordCredentials("a@b", "wrong")) as client:
        with pytest.raises(UnauthenticatedError):
            await client.tenants.get("ten_a")
    assert len(platform.requests) == 1


async def test_a_token_is_renewed_before_it_expires(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr("gpuaas_sdk.transport.time.monotonic", lambda: now[0])
    platform = ScriptedPlatform(token("one", 90), ok(tenant("a")), token("two", 90), ok(tenant("a")))
    async with platform.client(PasswordCredentials("a@b", "secret")) as client:
        await client.tenants.get("ten_a")
        now[0] += 65
        await client.tenants.get("ten_a")
    assert platform.requests[-1].headers["authorization"] == "Bearer two"


async def test_a_service_account_signs_an_assertion_for_every_token(tmp_path: Path) -> None:
    key = Ed25519PrivateKey.generate()
    pem = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    file = tmp_path / "account.json"
    file.write_text(
        json.dumps({"service_account_id": "sva_1", "private_key_pem": pem, "api_url": "http://platform.test"})
    )
    platform = ScriptedPlatform(httpx.ConnectError("refused"), token("one"), ok(tenant("a")))
    async with platform.client(ServiceAccountCredentials.from_file(file)) as client:
        await client.tenants.get("ten_a")
    forms = [httpx.QueryParams(r.content.decode()) for r in platform.requests[:2]]
    assertions = [form["client_assertion"] for form in forms]
    # The first answer was lost: the same assertion would be refused as used.
    assert assertions[0] != assertions[1]
    claims = jwt.decode(assertions[1], OKPKey.import_key(pem), algorithms=["Ed25519"]).claims
    assert (claims["iss"], claims["sub"], claims["aud"]) == ("sva_1", "sva_1", "gpuaas")
    assert claims["exp"] - claims["iat"] <= 60
    assert forms[1]["grant_type"] == "client_credentials"


def test_a_file_that_is_no_account_is_said(tmp_path: Path) -> None:
    file = tmp_path / "account.json"
    file.write_text('{"service_account_id": "sva_1"}')
    with pytest.raises(ValueError, match="is not a service account file"):
        ServiceAccountCredentials.from_file(file)
