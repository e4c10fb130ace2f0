"""Commands for one's own logins, for requests of several members, and for the usage of a tenant."""

import json

import pytest

from gpuaas_cli.main import run

from .cli_test_platform import INSTANCE, PROJECT, StubPlatform

AT = "2030-01-01T00:00:00Z"
SESSION = {
    "id": "ses_01abc",
    "kind": "device",
    "user_id": "usr_01",
    "client": "gpuaas on laptop",
    "created_at": AT,
    "last_used_at": AT,
    "expires_at": AT,
}


def test_own_logins(logged_in: StubPlatform, capsys: pytest.CaptureFixture[str]) -> None:
    logged_in.answer("GET /v1/auth/sessions", {"items": [SESSION]})
    assert run(["session", "list"]) == 0
    assert "gpuaas on laptop" in capsys.readouterr().out
    logged_in.answer("DELETE /v1/auth/sessions/ses_01abc", SESSION)
    assert run(["session", "end", "ses_01abc"]) == 0
    assert "ses_01abc" in capsys.readouterr().out
    assert run(["session", "end", "ses_of_another"]) == 3


def test_requests_for_several_members(logged_in: StubPlatform, capsys: pytest.CaptureFixture[str]) -> None:
    refused = {"title": "t", "status": 409, "detail": "is busy", "code": "operation_running"}
    result = {"member_id": "mem_01", "refused": {**refused, "type": "x", "correlation_id": "cor_1"}}
    bulk = {
        "id": "blk_01abc",
        "revision": 1,
        "created_at": AT,
        "updated_at": AT,
        "instance_id": INSTANCE["id"],
        "project_id": INSTANCE["project_id"],
        "kind": "drain",
        "policy": "best_effort",
        "state": "failed",
        "results": [result],
        "requested_by": "usr_01",
        "correlation_id": "cor_1",
    }
    logged_in.answer(f"GET /v1/app-instances/{INSTANCE['id']}", INSTANCE)
    logged_in.answer(f"GET /v1/app-instances/{INSTANCE['id']}/bulk-operations", {"items": [bulk]})
    logged_in.answer("GET /v1/bulk-operations/blk_01abc", bulk)
    assert run(["bulk-operation", "list", str(INSTANCE["id"]), "-o", "json"]) == 0
    assert [each["id"] for each in json.loads(capsys.readouterr().out)] == ["blk_01abc"]
    assert run(["bulk-operation", "show", "blk_01abc"]) == 0
    assert "is busy" in capsys.readouterr().out


def test_usage_of_a_tenant(logged_in: StubPlatform, capsys: pytest.CaptureFixture[str]) -> None:
    tenant = {"id": PROJECT["tenant_id"], "name": "acme", "title": "Acme", "revision": 1}
    logged_in.answer("GET /v1/tenants", {"items": [{**tenant, "created_at": AT, "updated_at": AT}]})
    logged_in.answer("GET /v1/usage", {"items": []})
    assert run(["usage", "list", "--tenant", "acme"]) == 0
    assert f"tenant_id={PROJECT['tenant_id']}" in logged_in.paths[-1]
    assert run(["usage", "list", "--tenant", "another"]) == 3
