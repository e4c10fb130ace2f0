"""decommission: everything that the app brought is removed, and the receipt proves it."""

from slurm_app.decommission_phases import DECOMMISSION_PHASES
from slurm_app.phases import Evidence
from slurm_app.reconcilers.seam import OperationSteps, run_phases
from slurm_app.scope import Scope


async def reconcile(operation: OperationSteps, scope: Scope) -> dict[str, Evidence]:
    return await run_phases(operation, scope, DECOMMISSION_PHASES)
