"""Logs, metrics and health, and that no secret gets into any of them."""

import json
import re
import secrets

import httpx
import pytest
import websockets

from gpuaas_contract.identity import Role
from gpuaas_sdk.client import GpuaasClient
from gpuaas_stack.settings import Settings
from tests.support.database import dump
from tests.support.processes import log_file, metrics_header
from tests.support.services import admin_credentials
from tests.support.waiting import wait_until
from tests.support.world import World, make_key, sign_assertion

ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


def read_log(settings: Settings) -> str:
    return log_file(settings).read_text()


def metrics_of(text: str) -> dict[str, float]:
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


async def test_every_line_of_the_log_is_json_and_names_its_request(settings: Settings) -> None:
    correlation_id = f"log-{secrets.token_hex(8)}"
    async with httpx.AsyncClient(base_url=settings.api_url) as http:
        await http.get("/v1/tenants?cursor=not-in-the-log", headers={"X-Correlation-Id": correlation_id})
    wait_until(lambda: correlation_id in read_log(settings), "the request is in the log")
    entries = [json.loads(line) for line in read_log(settings).splitlines()]
    assert all({"event", "level", "timestamp"} <= set(entry) for entry in entries)
    assert any(entry.get("logger", "").startswith("uvicorn") for entry in entries), "the server's own lines are there"
    (line,) = [entry for entry in entries if entry.get("correlation_id") == correlation_id]
    assert (line["event"], line["method"], line["path"], line["status"]) == ("request", "GET", "/v1/tenants", 401)


async def test_metrics_count_what_happens(settings: Settings, world: World) -> None:
    async with httpx.AsyncClient(base_url=settings.api_url) as http:
        await http.get("/v1/tenants")
        await http.get(f"/{secrets.token_hex(4)}/invented")
        answer = await http.get("/metrics", headers=metrics_header(settings))
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        before = metrics_of(answer.text)
        await http.get("/v1/tenants")
        await world.admin.tenants.get(world.tenant.id)
        after = metrics_of((await http.get("/metrics", headers=metrics_header(settings))).text)

    def grown(name: str) -> float:
        return after[name] - before.get(name, 0)

    assert grown('gpuaas_http_requests_total{method="GET",route="/v1/tenants",status="401"}') == 1
    assert grown('gpuaas_anonymous_denials_total{route="/v1/tenants"}') == 1
    read = 'method="GET",route="/v1/tenants/{tenant_id}"'
    assert grown(f'gpuaas_http_requests_total{{{read},status="200"}}') == 1
    assert grown(f"gpuaas_http_request_seconds_count{{{read}}}") == 1
    assert after['gpuaas_http_requests_total{method="GET",route="unmatched",status="404"}'] >= 1
    assert after["gpuaas_http_requests_in_flight"] >= 1, "the request that reads it"
    assert after["gpuaas_agents_connected"] >= 1
    for name in ("database_pool_size", "database_up", "secrets_server_up"):
        assert after[f"gpuaas_{name}"] >= 1
    for name in ("feed_lag_seconds", "feed_unsequenced_changes", "audit_unsealed_entries", "streams_open"):
        assert after[f"gpuaas_{name}"] >= 0
    labels = " ".join(after)
    assert not re.search(r"(ten|prj|usr|sva|alc|nod)_[0-9a-z]{26}|invented", labels), "labels name nothing of anybody"


async def test_health_says_what_it_checked(settings: Settings) -> None:
    async with httpx.AsyncClient(base_url=settings.api_url) as http:
        assert (await http.get("/healthz")).json() == {"status": "alive"}
        assert (await http.get("/readyz")).json() == {"status": "ready"}


async def test_no_secret_gets_into_logs_database_or_answers(
    settings: Settings, world: World, admin: GpuaasClient
) -> None:
    """Send every kind of secret through every way it takes, rightly and wrongly, then look for it everywhere."""
    canary = f"canary{secrets.token_hex(8)}"
    password = f"{canary}-password"
    user = await admin.users.create(f"user-{secrets.token_hex(4)}@example.com", password)
    await admin.memberships.create(user.id, Role.PROJECT_VIEWER, project_id=world.project.id)
    private, public = make_key()
    account = await admin.service_accounts.create(world.project.id, f"c{secrets.token_hex(4)}", public)
    assertion = sign_assertion(private, account.id, "gpuaas")
    join_token = (await admin.join_tokens.create(f"n{secrets.token_hex(4)}")).token
    form = {"grant_type": "client_credentials", "client_assertion_type": ASSERTION_TYPE}
    answers: list[httpx.Response] = []
    async with httpx.AsyncClient(base_url=settings.api_url) as http:

        async def post(path: str, **content: object) -> httpx.Response:
            answers.append(await http.post(path, **content))  # type: ignore[arg-type]
            return answers[-1]

        token = (await post("/v1/auth/login", json={"email": user.email, "password": password})).json()["access_token"]
        await post("/v1/auth/login", json={"email": user.email, "password": f"{canary}-wrong"})
        await post("/v1/auth/login", json={"email": user.email, "password": [f"{canary}-list"]})
        await post("/v1/auth/login", json={"email": user.email, "password": f"{canary}-long" * 200})
        await post("/v1/auth/login", content=f'{{"password": "{canary}-broken'.encode())
        issued = await post("/v1/oauth/token", data={**form, "client_assertion": assertion})
        await post("/v1/oauth/token", data={**form, "client_assertion": assertion})
        await post("/v1/oauth/token", data={**form, "client_assertion": f"{canary}.x.y"})
        await post("/v1/nodes/enrol", json={"join_token": f"{canary}-join", "public_key_pem": public})
        await post("/v1/nodes/enrol", json={"join_token": join_token, "public_key_pem": f"{canary}-pem"})
        await post("/v1/nodes/enrol", json={"join_token": join_token, "public_key_pem": public})
        headers = {"Authorization": f"Bearer {token}", "Cookie": f"session={canary}-cookie"}
        await post("/v1/users", json={"email": "no", "password": f"{canary}-short"}, headers=headers)
        await post("/v1/tenants", json={"name": "x"}, headers={"Authorization": f"Bearer {canary}.{canary}.x"})
        await post(f"/v1/tenants?token={canary}-query", json={}, headers=headers)
    agent = world.node.token()
    url = settings.api_url.replace("http", "ws", 1) + "/v1/agent/streams/stm_none"
    with pytest.raises(websockets.InvalidStatus):
        await websockets.connect(url, additional_headers={"Authorization": f"Bearer {agent}"})

    signature = assertion.rsplit(".", 1)[1]
    secrets_sent = [canary, signature, join_token, token, issued.json()["access_token"], agent.rsplit(".", 1)[1]]
    secrets_sent += [admin_credentials(settings)[1], (await admin.fetch_token()).access_token]
    stored = dump(settings)
    logged = "\n".join(path.read_text() for path in (settings.state_dir / "logs").iterdir())
    assert user.email in stored, "the dump holds what it should"
    for secret in secrets_sent:
        for where, text in {"log": logged, "database": stored}.items():
            position = text.find(secret)
            assert position < 0, f"a secret is in the {where}: …{text[max(0, position - 200) : position + 100]}"
    for answer in answers:
        if answer.is_error:
            assert canary not in answer.text, answer.text
            oauth = answer.request.url.path == "/v1/oauth/token"
            assert answer.headers["content-type"] == ("application/json" if oauth else "application/problem+json")
