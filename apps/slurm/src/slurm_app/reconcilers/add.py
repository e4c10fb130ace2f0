"""add: one or more workers join a running cluster."""

from slurm_app.phases import WORKER_PHASES, Evidence
from slurm_app.reconcilers.seam import OperationSteps, run_phases
from slurm_app.scope import Scope


async def reconcile(operation: OperationSteps, scope: Scope) -> dict[str, Evidence]:
    return await run_phases(operation, scope, WORKER_PHASES)
