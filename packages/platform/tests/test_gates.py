"""The app's checks as the first step of a deploy: what is shown of them, and when the deploy begins."""

import json
from datetime import UTC, datetime

import pytest

from gpuaas_contract.findings import Finding, Severity
from gpuaas_contract.operations import EVIDENCE_BYTES, PREFLIGHT_STEP
from gpuaas_contract.preflights import AppChecks, PreflightState
from gpuaas_platform.instances.records import PreflightRecord
from gpuaas_platform.instances.rules.gates import gate_failure, gate_step

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def found(severity: Severity, message: str = "no") -> Finding:
    return Finding(severity=severity, code="found", message=message, action=message)


def preflight(*findings: Finding, state: PreflightState = PreflightState.DONE) -> PreflightRecord:
    return PreflightRecord(
        project_id="prj_1",
        instance_id="ins_1",
        app_slug="echo",
        version="1.0.0",
        kind="deploy",
        request={},
        id="pfl_1",
        allocation_ids=("alc_1", "alc_2"),
        state=state,
        app_checks=AppChecks.DONE,
        findings=findings,
        operation_id="op_1",
        requested_by="usr_1",
        correlation_id="cor_1",
        ended_at=None,
        revision=1,
        created_at=NOW,
        updated_at=NOW,
    )


ERROR, WARNING = found(Severity.ERROR, "too small"), found(Severity.WARNING, "it is late")


@pytest.mark.parametrize(
    ("looked", "called_off", "code"),
    [
        (preflight(), False, None),
        (preflight(WARNING), False, None),
        (preflight(WARNING, ERROR), False, "preflight_failed"),
        (preflight(ERROR), True, "preflight_failed"),
        (preflight(), True, "predecessor_failed"),
    ],
)
def test_when_it_begins(looked: PreflightRecord, called_off: bool, code: str | None) -> None:
    for kind in ("deploy", "add"):
        failure = gate_failure(looked, kind, called_off=called_off)
        assert (failure and failure.code) == code
        assert failure is None or failure.retryable


def test_an_addition_says_that_it_was_not_begun() -> None:
    failure = gate_failure(preflight(ERROR), "add", called_off=False)
    assert failure is not None
    assert failure.detail.startswith("not begun, as its deploy was not: too small")


def test_the_step() -> None:
    assert gate_step(preflight(state=PreflightState.RUNNING)).status == "running"
    assert gate_step(preflight(WARNING)).status == "succeeded"
    step = gate_step(preflight(WARNING, ERROR))
    assert (step.key, step.status) == (PREFLIGHT_STEP, "failed")
    assert [finding["severity"] for finding in step.evidence["findings"]] == ["error", "warning"]


def test_it_fits_whatever_an_app_finds() -> None:
    looked = preflight(*[found(Severity.ERROR, "😀" * 4_000) for _ in range(200)])
    step = gate_step(looked)
    assert len(json.dumps(step.evidence, ensure_ascii=False).encode()) < EVIDENCE_BYTES
    assert step.evidence["left_out"] == 180
    failure = gate_failure(looked, "add", called_off=False)
    assert failure is not None
    assert len(failure.detail) < 4_000
