"""Deploying, watching and the receipt, as people see them."""

import json
from typing import Any

import pytest

from gpuaas_cli.main import run

from .cli_test_platform import AT, INSTANCE, PROJECT, StubPlatform


def operation(kind: str, state: str, **more: Any) -> dict[str, Any]:
    return {
        "id": "op_00000000000000000000000001",
        "instance_id": INSTANCE["id"],
        "project_id": PROJECT["id"],
        "app_slug": "demo",
        "kind": kind,
        "input": {},
        "state": state,
        "attempt": 1,
        "deadline": AT,
        "requested_by": "usr_1",
        "correlation_id": "cor_op",
        "revision": 1,
        "created_at": AT,
        "updated_at": AT,
        **more,
    }


def step(key: str, status: str, message: str = "") -> dict[str, Any]:
    ended = None if status == "running" else "2026-01-01T00:00:03.5Z"
    return {
        "key": key,
        "title": key.title(),
        "status": status,
        "message": message,
        "attempt": 1,
        "started_at": AT,
        "ended_at": ended,
    }


@pytest.fixture
def cluster(logged_in: StubPlatform) -> StubPlatform:
    logged_in.answer("GET /v1/app-instances", {"items": [INSTANCE]})
    logged_in.answer(f"GET /v1/app-instances/{INSTANCE['id']}", INSTANCE)
    logged_in.answer(f"GET /v1/app-instances/{INSTANCE['id']}/members", {"items": []})
    logged_in.answer("GET /v1/changes", {"items": [], "next_cursor": "c"})
    return logged_in


def test_a_deploy_sends_what_was_asked_for(cluster: StubPlatform, tmp_path: Any) -> None:
    machine = "alc_00000000000000000000000001"
    cluster.answer(f"GET /v1/allocations/{machine}", {**_machine(), "id": machine})
    cluster.answer("POST /v1/app-instances", INSTANCE, 201)
    (tmp_path / "in.yaml").write_text("size: 1\ncolour: red\n")
    flags = ["--place", f"head={machine}", "--place", f"tail={machine}", "--input", "size=3"]
    assert run(["instance", "deploy", "demo", "--name", "first", *flags, "--inputs-file", "in.yaml"]) == 0
    sent = json.loads(next(body for request, _, body in cluster.requests if request == "POST /v1/app-instances"))
    assert sent["inputs"] == {"size": 3, "colour": "red"}
    assert sent["placement_intent"] == [
        {"component_key": "head", "allocation_id": machine},
        {"component_key": "tail", "allocation_id": machine},
    ]


def _machine() -> dict[str, Any]:
    shape = {"cpus": 1, "memory_mib": 512, "disk_gib": 8, "gpus": 0}
    fixed = {"tenant_id": "ten_1", "project_id": PROJECT["id"], "name": "one", "shape": shape, "status": "active"}
    return {**fixed, "correlation_id": "c", "revision": 1, "created_at": AT, "updated_at": AT}


def test_a_wrong_place_is_usage(cluster: StubPlatform, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["instance", "deploy", "demo", "--name", "first", "--place", "nonsense"]) == 2
    assert "COMPONENT=MACHINE" in capsys.readouterr().err


def test_watching_shows_steps_with_times_and_ends_with_the_work(
    cluster: StubPlatform, capsys: pytest.CaptureFixture[str]
) -> None:
    done = operation("deploy", "succeeded", steps=[step("install", "succeeded", "12 packages")])
    cluster.answer(f"GET /v1/operations/{done['id']}", done)
    assert run(["operation", "watch", done["id"], "-o", "json"]) == 0
    said = capsys.readouterr()
    assert "✓ Install  12 packages  3.5 s" in said.err
    assert json.loads(said.out)["state"] == "succeeded"


def test_awaited_work_that_failed_is_seven_and_says_what_to_do(
    cluster: StubPlatform, capsys: pytest.CaptureFixture[str]
) -> None:
    error = {"code": "port_taken", "detail": "port 80 is taken", "retryable": True}
    href = "/v1/operations/op_00000000000000000000000001/retry"
    retry = {"action": "retry", "title": "Again", "method": "POST", "href": href}
    failed = operation("deploy", "failed", error=error, allowed_actions=[retry], steps=[step("install", "failed")])
    cluster.answer(f"GET /v1/operations/{failed['id']}", failed)
    assert run(["operation", "watch", failed["id"]]) == 7
    said = capsys.readouterr().err
    assert "port_taken: port 80 is taken (cor_op)" in said
    assert "next: gpuaas operation retry op_00000000000000000000000001" in said


def test_waiting_has_an_end(cluster: StubPlatform, capsys: pytest.CaptureFixture[str]) -> None:
    going = operation("deploy", "running", steps=[step("install", "running")])
    cluster.answer(f"GET /v1/operations/{going['id']}", going)
    assert run(["operation", "watch", going["id"], "--timeout", "0.3"]) == 8
    assert "not finished after 0 s; it continues in the background" in capsys.readouterr().err


RECEIPT = {
    "ok": False,
    "members": [
        {
            "member_id": "mem_1",
            "allocation_id": "alc_1",
            "checks": [
                {"check": "port", "command": "ss", "expected": "free", "found": "free", "ok": True, "at": AT},
                {"check": "user", "command": "id", "expected": "none", "found": "uid=5", "ok": False, "at": AT},
            ],
            "exempt": ["/var/log/demo"],
        }
    ],
}


def test_a_receipt_that_is_not_clean_is_not_a_success(
    cluster: StubPlatform, capsys: pytest.CaptureFixture[str]
) -> None:
    torn = operation("decommission", "failed", result={"receipt": RECEIPT})
    cluster.answer("GET /v1/operations", {"items": [torn]})
    assert run(["instance", "receipt", "first"]) == 7
    out = capsys.readouterr().out
    assert "LEFT  alc_1    user   none      uid=5" in out
    assert "/var/log/demo" in out
    assert "SOMETHING IS LEFT: 1 of 2 checks passed" in out


def test_a_receipt_of_another_shape_is_shown_as_it_is(
    cluster: StubPlatform, capsys: pytest.CaptureFixture[str]
) -> None:
    other = operation("decommission", "succeeded", result={"receipt": {"all": "gone"}})
    cluster.answer("GET /v1/operations", {"items": [other]})
    assert run(["instance", "receipt", "first"]) == 0
    assert capsys.readouterr().out == "all: gone\n"


def test_members_that_share_a_machine_are_shown_once(cluster: StubPlatform, capsys: pytest.CaptureFixture[str]) -> None:
    checks = [{"check": "port", "command": "ss", "expected": "free", "found": "free", "ok": True, "at": AT}]
    shared = [{"member_id": id, "allocation_id": "alc_1", "checks": checks, "exempt": ["log"]} for id in ("m1", "m2")]
    torn = operation("decommission", "succeeded", result={"receipt": {"ok": True, "members": shared}})
    cluster.answer("GET /v1/operations", {"items": [torn]})
    cluster.answer(f"GET /v1/app-instances/{torn['instance_id']}/members", {"items": []})
    assert run(["instance", "receipt", "first"]) == 0
    out = capsys.readouterr().out
    assert "nothing is left: 1 of 1 checks passed" in out
    assert out.count("alc_1: log") == 1


@pytest.mark.parametrize(("passed", "is_whole"), [(True, False), (False, True)])
def test_long_answers_of_a_receipt_are_cut_unless_they_are_evidence(
    cluster: StubPlatform, capsys: pytest.CaptureFixture[str], passed: bool, is_whole: bool
) -> None:
    found = "file " * 100
    check = {"check": "files", "command": "ls", "expected": "nothing", "found": found, "at": AT, "ok": passed}
    member = {"allocation_id": "alc_1", "member_id": "mem_1", "checks": [check]}
    torn = operation("decommission", "succeeded", result={"receipt": {"ok": passed, "members": [member]}})
    cluster.answer("GET /v1/operations", {"items": [torn]})
    cluster.answer(f"GET /v1/app-instances/{torn['instance_id']}/members", {"items": []})
    run(["instance", "receipt", "first"])
    said = capsys.readouterr().out
    assert (found.strip() in said) is is_whole
    assert ("-o json shows all" in said) is not is_whole


def test_no_receipt_yet(cluster: StubPlatform) -> None:
    cluster.answer("GET /v1/operations", {"items": []})
    assert run(["instance", "receipt", "first"]) == 3


def test_tearing_down_without_a_terminal_needs_a_yes(
    cluster: StubPlatform, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import io

    monkeypatch.setattr("sys.stdin", io.StringIO(""))
    assert run(["instance", "decommission", "first"]) == 2
    assert "next: --yes" in capsys.readouterr().err
    assert not any(request.startswith("POST") for request, _, _ in cluster.requests)
