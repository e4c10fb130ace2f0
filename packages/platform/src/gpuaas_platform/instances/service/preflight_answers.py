"""The results of an app's own checks of a preflight."""

from pydantic import ValidationError

from gpuaas_contract.base import JsonObject
from gpuaas_contract.events import PreflightEvent
from gpuaas_contract.findings import Finding, FindingSource, Severity
from gpuaas_contract.operations import OperationError, OperationState
from gpuaas_contract.preflights import AppChecks, PreflightResult
from gpuaas_contract.problems import Code, FieldError
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.instances.records import PreflightRecord
from gpuaas_platform.instances.storage import preflights as store
from gpuaas_platform.operations.records import OperationRecord


async def tell(tx: Transaction, row: PreflightRecord, event: PreflightEvent, message: str = "") -> None:
    scope = {"project_id": row.project_id, "instance_id": row.instance_id, "app_slug": row.app_slug}
    await tx.changed(event, row, message=message, **scope)


def refuse_in_preflight(operation: OperationRecord, what: str) -> None:
    if operation.preflight_id is not None:
        raise Refusal(Code.FORBIDDEN, f"a preflight looks and changes nothing: there are no {what} for it")


def check_result(result: JsonObject) -> list[Finding]:
    """Before the operation ends: a controller that hands over nonsense hears of it."""
    try:
        findings = PreflightResult.model_validate(result).findings
    except ValidationError as error:
        errors = [
            FieldError(pointer="/result" + "".join(f"/{part}" for part in found["loc"]), detail=found["msg"])
            for found in error.errors()
        ]
        raise Refusal(Code.INVALID_REQUEST, "this is not the result of a preflight", errors=errors) from None
    return [finding.model_copy(update={"source": FindingSource.APP}) for finding in findings]


async def answered(
    tx: Transaction, operation: OperationRecord, state: OperationState, result: JsonObject, error: OperationError | None
) -> None:
    """Put the findings of the app into the preflight that the operation was made for."""
    assert operation.preflight_id is not None
    if state == OperationState.SUCCEEDED:
        checks, findings = AppChecks.DONE, check_result(result)
    else:
        why = (error and error.detail) or f"the operation was {state.value}"
        message = f"the app's own checks did not come to an end: {why}"
        action = "look at the app's controller, then ask again"
        unfinished = Finding(severity=Severity.ERROR, code="app_checks_failed", message=message, action=action)
        checks, findings = AppChecks.FAILED, [unfinished]
    await tell(tx, await store.finish(tx, operation.preflight_id, checks, findings), PreflightEvent.DONE)
