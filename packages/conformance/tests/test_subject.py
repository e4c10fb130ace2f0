import random
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
import yaml

from gpuaas_conformance.platform import KitError
from gpuaas_conformance.proxy import Exchange, FaultProxy
from gpuaas_conformance.rules import Findings
from gpuaas_conformance.scenarios import Kit
from gpuaas_conformance.subject import AppUnderTest, Subject, read_app
from gpuaas_contract.instances import Instance
from gpuaas_contract.operations import Operation
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.testing import ScriptedPlatform

MANIFEST = {
    "schema": "gpuaas.app/v1",
    "slug": "x",
    "title": "X",
    "version": "1.0.0",
    "runtime": {"name": "x", "version": "1"},
    "components": [{"key": "main", "title": "Main", "primary": True}],
    "operations": [
        {"kind": kind, "title": kind, "deadline_seconds": 60, "input_schema": {"type": "object"}}
        for kind in ("deploy", "decommission")
    ],
}


def app(directory: Path, **notes: object) -> AppUnderTest:
    (directory / "manifest.yaml").write_text(yaml.safe_dump(MANIFEST))
    pack = {"manifest": "manifest.yaml", "bundle": ["x", "{output}"], "controller": ["x", "run"]}
    (directory / "pack.yaml").write_text(yaml.safe_dump(pack))
    if notes:
        (directory / "conformance.yaml").write_text(yaml.safe_dump(notes))
    return read_app(directory, None, [])


def test_two_deploys_may_differ_only_where_the_app_says_so(tmp_path: Path) -> None:
    one, other = {"/etc/x", "/var/lib/x/job_state"}, {"/etc/x", "/var/lib/x/job_state", "/var/lib/x/job_state.old"}
    assert app(tmp_path).differences(one, other) == ["/var/lib/x/job_state.old"]
    quiet = app(tmp_path, restless=["/var/lib/x/*"])
    assert quiet.differences(one, other) == []
    assert quiet.differences(one, {*other, "/etc/y"}) == ["/etc/y"]


def test_a_note_that_the_kit_does_not_understand_is_refused(tmp_path: Path) -> None:
    with pytest.raises(KitError, match="restless"):
        app(tmp_path, resltess=["/var/lib/x/*"])


def operation(**fields: Any) -> dict[str, Any]:
    now = datetime.now(UTC).isoformat()
    return {
        "id": "op_1",
        "project_id": "prj_1",
        "app_slug": "x",
        "kind": "deploy",
        "input": {},
        "state": "running",
        "attempt": 1,
        "deadline": now,
        "requested_by": "usr_1",
        "correlation_id": "cor_1",
        "revision": 1,
        "created_at": now,
        "updated_at": now,
        **fields,
    }


def subject(admin: GpuaasClient, directory: Path) -> Subject:
    return Subject(admin, FaultProxy("http://platform.test"), app(directory), "prj_1", [], directory, directory / "log")


async def test_a_controller_that_is_not_the_kits_own_ends_the_run(tmp_path: Path) -> None:
    lease = {"holder": "theirs:7", "expires_at": datetime.now(UTC).isoformat()}
    page = {"items": [operation(lease=lease)]}
    instance = cast(Instance, SimpleNamespace(id="ins_1"))
    async with ScriptedPlatform(httpx.Response(200, json=page)).client() as admin:
        kits = subject(admin, tmp_path)
        with pytest.raises(KitError, match="theirs:7 has claimed the kit's own deploy"):
            await kits.operations(instance)
        claim = Exchange(0, 0.0, "POST", "/v1/operations/op_1/claim", '{"holder": "theirs:7"}')
        kits.proxy.exchanges.append(claim)
        assert [found.id for found in await kits.operations(instance)] == ["op_1"]


@pytest.mark.parametrize(
    ("code", "detail", "verdict"),
    [
        ("delivery_failed", "cannot deliver it to one", "kept"),
        ("controller_bug", "KeyError in the controller; its log has the details", "BROKEN"),
        ("x", "cannot deliver it to one", "BROKEN"),
        ("delivery_failed", "no", "BROKEN"),
    ],
)
async def test_a_failure_is_a_code_and_a_sentence_and_no_bug(
    tmp_path: Path, code: str, detail: str, verdict: str
) -> None:
    error = {"code": code, "detail": detail, "retryable": True}
    async with ScriptedPlatform(httpx.Response(200)).client() as admin:
        kit = Kit(subject(admin, tmp_path), Findings(), random.Random(1))
        kit.look_at_failures([Operation.model_validate(operation(state="failed", error=error))])
    assert kit.findings.verdict("fails-in-words") == verdict
