"""The app's own checks as the first step of a deploy: how they are shown, and how a deploy fails by them."""

from gpuaas_contract.base import JsonObject
from gpuaas_contract.findings import Severity
from gpuaas_contract.operations import PREFLIGHT_STEP, Kind, OperationError, StepReport, StepStatus
from gpuaas_contract.preflights import PreflightState
from gpuaas_platform.instances.records import PreflightRecord

PREFLIGHT_FAILED = "preflight_failed"
TITLE = "Look at the machines before anything is changed"
MOST_SHOWN, LONGEST_SHOWN = 20, 300
"""As many findings, with words as long, fit into a step; the preflight itself has all of them."""
LONGEST_DETAIL = 3_000


def shown_findings(preflight: PreflightRecord) -> list[JsonObject]:
    """Show the errors before the warnings."""
    ordered = sorted(preflight.findings, key=lambda finding: finding.severity != Severity.ERROR)
    cut = ("message", "action")
    return [
        {
            name: value[:LONGEST_SHOWN] if name in cut else value
            for name, value in finding.model_dump(mode="json").items()
        }
        for finding in ordered[:MOST_SHOWN]
    ]


def gate_step(preflight: PreflightRecord) -> StepReport:
    """Describe the checks as a step of the deploy."""
    errors = sum(finding.severity == Severity.ERROR for finding in preflight.findings)
    warnings = len(preflight.findings) - errors
    if preflight.state == PreflightState.RUNNING:
        status, message = StepStatus.RUNNING, f"{len(preflight.allocation_ids)} machines"
    elif errors:
        status, message = StepStatus.FAILED, f"{errors} in the way, {warnings} warnings; nothing was changed"
    else:
        status, message = StepStatus.SUCCEEDED, f"nothing in the way, {warnings} warnings"
    evidence: JsonObject = {"preflight_id": preflight.id, "machines": len(preflight.allocation_ids)}
    if preflight.findings:
        evidence["findings"] = shown_findings(preflight)
        evidence["left_out"] = max(0, len(preflight.findings) - MOST_SHOWN)
    return StepReport(
        fencing_token=0, key=PREFLIGHT_STEP, title=TITLE, status=status, message=message, evidence=evidence
    )


def gate_failure(preflight: PreflightRecord, kind: str, *, called_off: bool) -> OperationError | None:
    """Say why an operation of a deploy does not begin; None where it does."""
    errors = [finding.message for finding in preflight.findings if finding.severity == Severity.ERROR]
    if errors:
        said = ("" if kind == Kind.DEPLOY else "not begun, as its deploy was not: ") + "; ".join(errors)
        said = said[:LONGEST_DETAIL]
        detail = f"{said}. Nothing was changed on any machine: mend it and retry, or decommission the instance"
        return OperationError(code=PREFLIGHT_FAILED, detail=detail, retryable=True)
    if called_off:
        detail = "its deploy was called off before it began; a retry of the deploy asks for it again"
        return OperationError(code="predecessor_failed", detail=detail, retryable=True)
    return None
