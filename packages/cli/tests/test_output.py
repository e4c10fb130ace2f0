"""Results on stdout in three forms, errors on stderr with a code, exit codes that programs can rely on."""

import json
from typing import Any

import pytest
import yaml

from gpuaas_cli.errors import next_command
from gpuaas_cli.main import run
from gpuaas_contract.problems import AllowedAction

from .cli_test_platform import AT, PROJECT, StubPlatform


def allocation(number: int, name: str, status: str = "active") -> dict[str, Any]:
    return {
        "tenant_id": "ten_1",
        "id": f"alc_{number:026d}",
        "project_id": PROJECT["id"],
        "name": name,
        "shape": {"cpus": 2, "memory_mib": 4096, "disk_gib": 8, "gpus": 1},
        "status": status,
        "address": f"10.0.0.{number}",
        "correlation_id": "cor_1",
        "revision": 1,
        "created_at": AT,
        "updated_at": AT,
    }


@pytest.fixture
def machines(logged_in: StubPlatform) -> StubPlatform:
    items = [allocation(1, "one", "released"), allocation(2, "one"), allocation(3, "two", "failed")]
    logged_in.answer("GET /v1/allocations", {"items": items})
    return logged_in


def test_a_table(machines: StubPlatform, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["allocation", "list"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "NAME  STATUS  SHAPE                            ADDRESS   IN USE BY  ID",
        "one   active  2 CPUs, 4096 MiB, 8 GiB, 1 GPUs  10.0.0.2             alc_00000000000000000000000002",
        "two   failed  2 CPUs, 4096 MiB, 8 GiB, 1 GPUs  10.0.0.3             alc_00000000000000000000000003",
    ]


def test_json_and_yaml_hold_the_wire_models(machines: StubPlatform, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["allocation", "list", "-o", "json"]) == 0
    from_json = json.loads(capsys.readouterr().out)
    assert run(["allocation", "list", "-o", "yaml"]) == 0
    assert yaml.safe_load(capsys.readouterr().out) == from_json
    assert [item["shape"]["gpus"] for item in from_json] == [1, 1]


def test_an_empty_list_is_a_note_beside_an_empty_result(
    logged_in: StubPlatform, capsys: pytest.CaptureFixture[str]
) -> None:
    logged_in.answer("GET /v1/allocations", {"items": []})
    assert run(["allocation", "list"]) == 0
    said = capsys.readouterr()
    assert (said.out, "allocation create" in said.err) == ("", True)
    assert run(["allocation", "list", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_a_name_means_the_live_one(machines: StubPlatform, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["allocation", "show", "one", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["id"].endswith("2")


def test_an_id_is_asked_for_directly(logged_in: StubPlatform, capsys: pytest.CaptureFixture[str]) -> None:
    wanted = allocation(7, "seven")
    logged_in.answer(f"GET /v1/allocations/{wanted['id']}", wanted)
    assert run(["allocation", "show", wanted["id"], "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["name"] == "seven"


@pytest.mark.parametrize(
    ("code", "status", "expected"),
    [
        ("not_found", 404, 3),
        ("forbidden", 403, 4),
        ("unauthenticated", 401, 4),
        ("name_taken", 409, 5),
        ("no_capacity", 409, 5),
        ("revision_mismatch", 412, 5),
        ("unavailable", 503, 6),
        ("node_offline", 503, 6),
        ("invalid_request", 422, 2),
        ("internal", 500, 1),
    ],
)
def test_exit_codes(
    logged_in: StubPlatform, capsys: pytest.CaptureFixture[str], code: str, status: int, expected: int
) -> None:
    logged_in.problem("POST /v1/allocations", code, status, errors=[{"pointer": "/name", "detail": "taken"}])
    assert run(["allocation", "create", "--name", "one"]) == expected
    said = capsys.readouterr()
    assert said.out == ""
    assert f"error: cannot: {code}" in said.err
    assert f"code: {code}" in said.err
    assert "correlation id: cor_stub" in said.err
    assert "/name: taken" in said.err


def test_what_to_do_next(logged_in: StubPlatform, capsys: pytest.CaptureFixture[str]) -> None:
    action = {"action": "watch", "title": "Watch it", "method": "GET", "href": "/v1/operations/op_01abc"}
    logged_in.problem("POST /v1/allocations", "operation_running", 409, allowed_actions=[action])
    assert run(["allocation", "create", "--name", "one"]) == 5
    assert "next: Watch it: gpuaas operation watch op_01abc" in capsys.readouterr().err
    unknown = AllowedAction(action="dance", title="Dance", method="POST", href="/v1/dances")
    assert next_command(unknown) == "POST /v1/dances"


def test_an_error_is_json_too(logged_in: StubPlatform, capsys: pytest.CaptureFixture[str]) -> None:
    logged_in.problem("POST /v1/allocations", "no_capacity", 409)
    assert run(["allocation", "create", "--name", "one", "-o", "json"]) == 5
    assert json.loads(capsys.readouterr().err)["code"] == "no_capacity"


def test_nobody_answers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("GPUAAS_TOKEN", "t")
    assert run(["tenant", "list", "--api-url", "http://127.0.0.1:1"]) == 6
    assert "cannot reach http://127.0.0.1:1" in capsys.readouterr().err


def test_which_project(logged_in: StubPlatform, capsys: pytest.CaptureFixture[str]) -> None:
    other = {**PROJECT, "id": "prj_00000000000000000000000002", "name": "teaching"}
    logged_in.answer("GET /v1/projects", {"items": [PROJECT, other]})
    logged_in.answer("GET /v1/allocations", {"items": []})
    assert run(["allocation", "list"]) == 2
    assert "research, teaching" in capsys.readouterr().err
    assert run(["allocation", "list", "--project", "teaching"]) == 0
    assert run(["allocation", "list", "--project", "nothing"]) == 3


def test_control_characters_of_others_do_not_reach_the_terminal(
    logged_in: StubPlatform, capsys: pytest.CaptureFixture[str]
) -> None:
    logged_in.answer("GET /v1/allocations", {"items": [{**allocation(1, "one"), "address": "\x1b]0;owned\x07"}]})
    assert run(["allocation", "list"]) == 0
    assert "\x1b" not in capsys.readouterr().out
