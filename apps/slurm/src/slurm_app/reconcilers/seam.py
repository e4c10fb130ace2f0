"""What a reconciler needs of its operation; the sdk's OperationContext has it."""

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

from slurm_app.errors import SlurmAppError
from slurm_app.phases import Evidence, Phase
from slurm_app.scope import Scope


class StepHandle(Protocol):
    message: str
    evidence: dict[str, Any]


class OperationSteps(Protocol):
    def step(self, key: str, title: str) -> AbstractAsyncContextManager[StepHandle]: ...


async def run_phases(operation: OperationSteps, scope: Scope, phases: Iterable[Phase]) -> dict[str, Evidence]:
    """Every phase is a visible step; its evidence is reported also when it failed."""
    results: dict[str, Evidence] = {}
    for phase in phases:
        async with operation.step(phase.key, phase.title) as step:
            try:
                step.evidence = results[phase.key] = await phase.run(scope)
            except SlurmAppError as error:
                step.message = error.detail
                step.evidence = getattr(error, "evidence", {})
                raise
    return results
