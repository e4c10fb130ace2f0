"""deploy: from empty machines to a finished first job."""

from slurm_app.phases import CONTROLLER_PHASES, DEPLOY_PHASES, Evidence
from slurm_app.reconcilers.seam import OperationSteps, run_phases
from slurm_app.scope import Scope


async def reconcile(operation: OperationSteps, scope: Scope) -> dict[str, Evidence]:
    """With workers in the scope the cluster is usable at the end; without, each comes by its own `add`."""
    return await run_phases(operation, scope, DEPLOY_PHASES if scope.workers else CONTROLLER_PHASES)
