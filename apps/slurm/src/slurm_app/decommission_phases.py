"""The phases of decommission. They work at any moment of a deploy, and twice."""

from collections.abc import Awaitable, Callable

from gpuaas_sdk.machines.base import Machine
from slurm_app.errors import NotReadyError
from slurm_app.phases import Evidence, Phase, on_each
from slurm_app.scope import Scope
from slurm_app.slurm import receipt, teardown


async def ensure_jobs_cancelled(scope: Scope) -> Evidence:
    return {**await teardown.ensure_jobs_cancelled(scope.controller, partition=scope.partition)}


async def ensure_nodes_deleted(scope: Scope) -> Evidence:
    """slurmd first, then the record: the other way round the node comes back as a ghost."""
    stopped = await on_each(scope.workers, teardown.ensure_worker_stopped)
    evidence: Evidence = {host: {**said} for host, said in stopped.items()}
    for worker in scope.workers:
        evidence[worker.hostname].update(await teardown.ensure_node_deleted(scope.controller, worker.hostname))
    return evidence


def _everywhere(work: Callable[[Machine], Awaitable[dict[str, str]]]) -> Callable[[Scope], Awaitable[Evidence]]:
    async def run(scope: Scope) -> Evidence:
        return await on_each(scope.machines, work)

    return run


async def read_receipts(scope: Scope) -> Evidence:
    """Probe; with a clean receipt the app's own record goes too. Anything left is a failure with evidence."""

    async def prove(machine: Machine) -> receipt.Receipt:
        found = await receipt.read_receipt(machine)
        if not found.clean:
            return found
        await teardown.ensure_record_forgotten(machine)
        return found.with_check(await receipt.read_record_check(machine))

    receipts = await on_each(scope.machines, prove)
    evidence: Evidence = {"receipts": [each.as_evidence() for each in receipts.values()]}
    if not all(each.clean for each in receipts.values()):
        raise TeardownIncompleteError(evidence, tuple(receipts.values()))
    return evidence


class TeardownIncompleteError(NotReadyError):
    """Something is left, or could not be seen. The receipts say what; trying again is allowed."""

    def __init__(self, evidence: Evidence, receipts: tuple[receipt.Receipt, ...]) -> None:
        left = [f"{each.hostname}: {check.check}: {check.found}" for each in receipts for check in each.left]
        super().__init__("teardown_incomplete", f"not everything is gone: {'; '.join(left)}"[:2_000])
        self.evidence = evidence


CANCEL = Phase("cancel-jobs", "Cancel jobs", ensure_jobs_cancelled)
NODES = Phase("delete-nodes", "Stop slurmd and delete the nodes", ensure_nodes_deleted)
STOP = Phase("stop-daemons", "Stop the daemons", _everywhere(teardown.ensure_daemons_stopped))
REMOVE = Phase(
    "remove-packages", "Remove packages, data, users and files", _everywhere(teardown.ensure_machine_cleaned)
)
PROVE = Phase("prove-removal", "Probe and write the receipt", read_receipts)

DECOMMISSION_PHASES = (CANCEL, NODES, STOP, REMOVE, PROVE)
