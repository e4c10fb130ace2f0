"""Phases as visible steps of an operation."""

from collections.abc import Iterable

from gpuaas_sdk import OperationContext, OperationFailed
from slurm_app.errors import SlurmAppError
from slurm_app.phases import Evidence, Phase
from slurm_app.scope import Scope


async def run_phases(operation: OperationContext, scope: Scope, phases: Iterable[Phase]) -> dict[str, Evidence]:
    """Every phase is a step; its evidence is reported also when it failed."""
    results: dict[str, Evidence] = {}
    for phase in phases:
        async with operation.step(phase.key, phase.title) as step:
            try:
                step.evidence = results[phase.key] = await phase.run(scope)
            except SlurmAppError as error:
                step.evidence = getattr(error, "evidence", {})
                raise OperationFailed(error.code, error.detail, retryable=error.retryable) from error
    return results
