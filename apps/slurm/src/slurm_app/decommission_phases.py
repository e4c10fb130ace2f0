"""The phases of a removal: of a whole cluster, or of one worker. They work at any moment of a deploy, and twice."""

from collections.abc import Awaitable, Callable

from gpuaas_sdk.machines.base import Machine, MachineUnreachableError
from slurm_app.errors import NotReadyError
from slurm_app.phases import Evidence, Phase, on_each
from slurm_app.scope import Scope
from slurm_app.slurm import nodes, receipt, teardown

UNREACHABLE = "unreachable"


def tolerant(work: Callable[[Machine], Awaitable[Evidence]]) -> Callable[[Machine], Awaitable[Evidence]]:
    """A machine that does not answer must not keep the others from being cleaned. It is said, and never a success."""

    async def run(machine: Machine) -> Evidence:
        try:
            return await work(machine)
        except MachineUnreachableError as error:
            return {UNREACHABLE: str(error)}

    return run


async def ensure_jobs_cancelled(scope: Scope) -> Evidence:
    async def cancel(controller: Machine) -> Evidence:
        return {**await teardown.ensure_jobs_cancelled(controller, partition=scope.partition)}

    return await tolerant(cancel)(scope.controller)


async def ensure_nodes_deleted(scope: Scope) -> Evidence:
    """slurmd first, then the record: the other way round the node comes back as a ghost."""

    async def stop(worker: Machine) -> Evidence:
        return {**await teardown.ensure_worker_stopped(worker)}

    evidence = await on_each(scope.workers, tolerant(stop))
    for worker in scope.workers:

        async def delete(controller: Machine, host: str = worker.hostname) -> Evidence:
            return {**await teardown.ensure_node_deleted(controller, host)}

        evidence[worker.hostname].update(await tolerant(delete)(scope.controller))
    return evidence


async def ensure_daemons_stopped(scope: Scope) -> Evidence:
    async def stop(machine: Machine) -> Evidence:
        return {**await teardown.ensure_daemons_stopped(machine, scope.going(machine))}

    return await on_each(scope.prepared, tolerant(stop))


async def ensure_machines_cleaned(scope: Scope) -> Evidence:
    async def clean(machine: Machine) -> Evidence:
        return {**await teardown.ensure_machine_cleaned(machine, scope.going(machine))}

    return await on_each(scope.prepared, tolerant(clean))


async def read_receipt_of(scope: Scope, machine: Machine) -> receipt.Receipt:
    """With a clean receipt the app's own record goes too, unless a role stays that needs it."""
    going = scope.going(machine)
    try:
        found = await receipt.read_receipt(machine, going)
        if not found.clean or not going.whole_machine:
            return found
        await teardown.ensure_record_forgotten(machine)
        return found.with_check(await receipt.read_record_check(machine))
    except MachineUnreachableError as error:
        return receipt.unverified_receipt(machine.hostname, machine.allocation_id, str(error), going)


async def read_receipts(scope: Scope) -> Evidence:
    """Probe. Anything left, and anything that could not be seen, is a failure with evidence."""
    receipts = await on_each(scope.prepared, lambda machine: read_receipt_of(scope, machine))
    return _prove(list(receipts.values()))


async def read_worker_receipts(scope: Scope) -> Evidence:
    """Of workers that leave a cluster which goes on: their node records are part of what must be gone."""
    receipts = await on_each(scope.prepared, lambda machine: read_receipt_of(scope, machine))
    proven = []
    for worker in scope.workers:
        record = await nodes.read_node(scope.controller, worker.hostname)
        gone = {"no": True, "yes": False, "unknown": None}[record.present]
        words = receipt.NOTHING if gone else record.words
        proven.append(receipts[worker.hostname].with_check(receipt.node_check(worker.hostname, words, gone=gone)))
    return _prove(proven)


def _prove(receipts: list[receipt.Receipt]) -> Evidence:
    evidence: Evidence = {"receipts": [each.as_evidence() for each in receipts]}
    if not all(each.clean for each in receipts):
        raise TeardownIncompleteError(evidence, tuple(receipts))
    return evidence


class TeardownIncompleteError(NotReadyError):
    """Something is left, or could not be seen. The receipts say what; trying again is allowed."""

    def __init__(self, evidence: Evidence, receipts: tuple[receipt.Receipt, ...]) -> None:
        left = [f"{each.hostname}: {c.check}: {c.found}" for each in receipts for c in each.left if c.ok is False]
        unseen = sorted({each.hostname for each in receipts for check in each.left if check.ok is None})
        words = [f"not everything is gone: {'; '.join(left)}"] if left else []
        if unseen:
            words.append(f"could not be verified on {', '.join(unseen)}, see the receipt")
        super().__init__("teardown_incomplete" if left else "teardown_unverified", "; ".join(words)[:2_000])
        self.evidence = evidence


CANCEL = Phase("cancel-jobs", "Cancel jobs", ensure_jobs_cancelled)
NODES = Phase("delete-nodes", "Stop slurmd and delete the nodes", ensure_nodes_deleted)
STOP = Phase("stop-daemons", "Stop the daemons", ensure_daemons_stopped)
REMOVE = Phase("remove-packages", "Remove packages, data, users and files", ensure_machines_cleaned)
PROVE = Phase("prove-removal", "Probe and write the receipt", read_receipts)
PROVE_WORKER = Phase("prove-removal", "Probe and write the receipt", read_worker_receipts)

DECOMMISSION_PHASES = (CANCEL, NODES, STOP, REMOVE, PROVE)
REMOVE_PHASES = (NODES, STOP, REMOVE, PROVE_WORKER)
