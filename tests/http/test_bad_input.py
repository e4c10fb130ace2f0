"""Nonsense of every kind, to every route that takes a body: a problem with a stable code, and no effect at all."""

import json
from collections.abc import Iterator
from typing import Any

import httpx
import psycopg
import pytest

from gpuaas_contract.problems import PROBLEM_MEDIA_TYPE, Code
from gpuaas_platform.api.app import declare_app
from gpuaas_sdk.client import GpuaasClient
from gpuaas_stack.settings import Settings
from tests.support.database import connect
from tests.support.policy_matrix import Row, rows
from tests.support.world import World

CODES = {code.value for code in Code} - {Code.INTERNAL.value}
# What grows by itself, and what is written about refusals.
_BYSTANDERS = {
    "changes",
    "request_records",
    "audit_entries",
    "audit_batches",
    "allocation_timeline",
    "used_assertions",
    "nodes",
    # A log-in that was refused is counted: that is what slows guesses down.
    "failed_attempts",
}


def body_rows() -> list[Row]:
    return [row for row in rows() if row.media_type == "application/json"]


def broken_bodies(example: dict[str, Any]) -> Iterator[tuple[str, bytes]]:
    text = json.dumps(example)
    yield "nothing", b""
    yield "cut off", text[: len(text) // 2].encode()
    yield "not UTF-8", b'{"name": "\xff\xfe"}'
    yield "a list", b"[1, 2]"
    yield "null", b"null"
    yield "deep", b"[" * 20_000
    yield "a long number", b'{"name": ' + b"9" * 5_000 + b"}"
    yield "an unknown field", json.dumps({**example, "colour": "red"}).encode()
    yield "an unknown field with a terrible name", json.dumps({**example, "x" * 5_000 + "\ud800\0": 1}).encode()
    for name in example:
        for what, value in {
            "a NUL": "\0",
            "half a character": "\ud800",
            "an over-long text": "x" * 100_000,
            "a number": 10**30,
            "not a number": float("nan"),
            "an object": {"\0": ["\0"], "\ud800": {}},
            "a list of objects": [{"a": None}] * 200,
        }.items():
            yield f"{name}: {what}", json.dumps({**example, name: value}).encode()


def count_rows(database: psycopg.Connection) -> dict[str, int]:
    tables = database.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'public'").fetchall()
    counts = {}
    for (table,) in tables:
        if table not in _BYSTANDERS:
            row = database.execute(f"SELECT count(*) FROM {table}".encode()).fetchone()
            assert row is not None
            counts[table] = row[0]
    return counts


def check_problem(answer: httpx.Response, what: str) -> None:
    assert 400 <= answer.status_code < 500, f"{what}: {answer.status_code} {answer.text[:500]}"
    assert answer.headers["content-type"] == PROBLEM_MEDIA_TYPE, what
    problem = answer.json()
    assert problem["code"] in CODES, what
    assert problem["correlation_id"] == answer.headers["x-correlation-id"]
    assert len(answer.content) < 20_000, f"{what}: the answer is as large as the nonsense"


@pytest.mark.parametrize("row", body_rows(), ids=lambda row: row.title)
async def test_broken_bodies_are_refused_without_effect(settings: Settings, admin: GpuaasClient, row: Row) -> None:
    token = (await admin.fetch_token()).access_token
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    path = row.path
    for name in row.parameters:
        path = path.replace(f"{{{name}}}", "none_0000000000000000000000000a")
    with connect(settings) as database:
        async with httpx.AsyncClient(base_url=settings.api_url, headers=headers, timeout=60) as http:
            before = count_rows(database)
            for what, content in broken_bodies(row.body):
                answer = await http.request(row.method, path, content=content)
                check_problem(answer, f"{row.title}, {what}")
        assert count_rows(database) == before


async def test_strange_paths_queries_and_headers_are_refused(settings: Settings, admin: GpuaasClient) -> None:
    token = (await admin.fetch_token()).access_token
    document = declare_app().openapi()
    async with httpx.AsyncClient(
        base_url=settings.api_url, headers={"Authorization": f"Bearer {token}"}, timeout=60
    ) as http:
        for path, methods in document["paths"].items():
            if "get" not in methods or "agent" in path:
                continue
            for strange in ("%00", "%ff%fe", "x" * 3_000, "..%2f..%2fetc", "%F0%9F%92%A9"):
                if "{" in path:
                    parts = [strange if part.startswith("{") else part for part in path.split("/")]
                    answer = await http.get("/".join(parts))
                    # A list of the things of something that does not exist may be empty.
                    if answer.status_code != 200:
                        check_problem(answer, f"{path} with {strange[:20]}")
            # What it does not grant, the registry's side answers with nothing, as clients of registries expect.
            asked = [] if path.startswith("/v1/registry/") else methods["get"]["parameters"]
            for parameter in asked:
                if parameter.get("in") == "query" and parameter["name"] not in {"claimable", "wait", "limit"}:
                    answer = await http.get(path, params={parameter["name"]: "\0nonsense"})
                    # A filter that is not looked up may simply match nothing.
                    if answer.status_code != 200 or answer.json()["items"]:
                        check_problem(answer, f"{path}?{parameter['name']}")
            for wrong in ("0", "-1", "501", "many", "9" * 400):
                if any(parameter.get("name") == "limit" for parameter in methods["get"]["parameters"]):
                    check_problem(await http.get(path, params={"limit": wrong}), f"{path}?limit={wrong[:9]}")
        for name, value in {"Idempotency-Key": "x" * 201, "If-Match": "W/nonsense"}.items():
            answer = await http.post("/v1/tenants", json={"name": "never-made"}, headers={name: value})
            check_problem(answer, name)
        assert "never-made" not in (await http.get("/v1/tenants", params={"limit": 500})).text


async def test_a_cursor_of_another_list_is_refused(settings: Settings, world: World) -> None:
    """Every list against the cursors of all others, and the feed's."""
    for name in ("one", "two"):
        await world.admin.projects.create(world.tenant.id, name)
        await world.admin.tenants.create(f"cur-{name}-{world.app_slug}")
    token = (await world.admin.fetch_token()).access_token
    document = declare_app().openapi()
    lists = [
        path
        for path, methods in document["paths"].items()
        if "{" not in path and any(p.get("name") == "cursor" for p in methods.get("get", {}).get("parameters", []))
    ]
    cursors: dict[str, str] = {}
    async with httpx.AsyncClient(
        base_url=settings.api_url, headers={"Authorization": f"Bearer {token}"}, timeout=60
    ) as http:
        for path in lists:
            if cursor := (await http.get(path, params={"limit": 1})).json()["next_cursor"]:
                cursors[path] = cursor
                assert (await http.get(path, params={"limit": 1, "cursor": cursor})).status_code == 200
        cursors["/v1/changes"] = (await http.get("/v1/changes")).json()["next_cursor"]
        assert len(cursors) >= 4
        for path in [*lists, "/v1/changes"]:
            for origin, cursor in cursors.items():
                if origin != path:
                    name = "since" if path == "/v1/changes" else "cursor"
                    answer = await http.get(path, params={name: cursor})
                    assert (answer.status_code, answer.json()["code"]) == (422, "cursor_invalid"), (origin, path)
