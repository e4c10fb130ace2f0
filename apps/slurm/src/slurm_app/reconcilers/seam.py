"""Phases as visible steps of an operation."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

from gpuaas_sdk import CommandError, OperationContext, OperationFailed
from gpuaas_sdk.runtime.context import StepHandle
from slurm_app.errors import SlurmAppError
from slurm_app.phases import Evidence, Phase
from slurm_app.scope import Scope


@asynccontextmanager
async def app_step(
    operation: OperationContext, key: str, title: str, *, usable: bool = False
) -> AsyncIterator[StepHandle]:
    """What the machine layer raises becomes the failure of the operation; its evidence is reported with the step.

    `usable`: the member works as before, also where this fails.
    """
    async with operation.step(key, title) as step:
        try:
            yield step
        except SlurmAppError as error:
            step.evidence = getattr(error, "evidence", {})
            raise OperationFailed(error.code, error.detail, retryable=error.retryable, member_usable=usable) from error
        except CommandError as error:
            raise OperationFailed("command_failed", str(error), retryable=True, member_usable=usable) from error


async def run_phases(operation: OperationContext, scope: Scope, phases: Iterable[Phase]) -> dict[str, Evidence]:
    """Every phase is a step; its evidence is reported also when it failed."""
    results: dict[str, Evidence] = {}
    for phase in phases:
        async with app_step(operation, phase.key, phase.title) as step:
            step.evidence = results[phase.key] = await phase.run(scope)
    return results
