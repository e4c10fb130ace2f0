"""The phases of a removal: of a whole cluster, or of one worker. They work at any moment of a deploy, and twice."""

from collections.abc import Awaitable, Callable
from contextlib import suppress

from gpuaas_contract.base import JsonObject
from gpuaas_sdk import Machine, MachineReceipt, MachineUnreachableError, Phase, on_each, probe
from slurm_app.scope import Scope
from slurm_app.slurm import nodes, receipt, teardown

UNREACHABLE = "unreachable"


Work = Callable[[Machine], Awaitable[JsonObject]]


def tolerate_unreachable(work: Work) -> Work:
    """Go on with the other machines where one does not answer. Its evidence says so, and its receipt is not clean."""

    async def run(machine: Machine) -> JsonObject:
        try:
            return await work(machine)
        except MachineUnreachableError as error:
            return {UNREACHABLE: str(error)}

    return run


async def ensure_jobs_cancelled(scope: Scope) -> JsonObject:
    async def cancel(controller: Machine) -> JsonObject:
        return {**await teardown.ensure_jobs_cancelled(controller, partition=scope.partition)}

    return await tolerate_unreachable(cancel)(scope.controller)


async def ensure_nodes_deleted(scope: Scope) -> JsonObject:
    """Stop slurmd first, then delete the record: the other way round the node comes back as a ghost."""

    async def stop(worker: Machine) -> JsonObject:
        return {**await teardown.ensure_worker_stopped(worker)}

    evidence = await on_each(scope.workers, tolerate_unreachable(stop))
    for worker in scope.workers:

        async def delete(controller: Machine, host: str = worker.hostname) -> JsonObject:
            return {**await teardown.ensure_node_deleted(controller, host)}

        evidence[worker.hostname].update(await tolerate_unreachable(delete)(scope.controller))
    return evidence


async def ensure_daemons_stopped(scope: Scope) -> JsonObject:
    async def stop(machine: Machine) -> JsonObject:
        return {**await teardown.ensure_daemons_stopped(machine, scope.removal_from(machine))}

    return await on_each(scope.prepared, tolerate_unreachable(stop))


async def ensure_machines_cleaned(scope: Scope) -> JsonObject:
    async def clean(machine: Machine) -> JsonObject:
        return {**await teardown.ensure_machine_cleaned(machine, scope.removal_from(machine))}

    return await on_each(scope.prepared, tolerate_unreachable(clean))


async def read_receipt_of(scope: Scope, machine: Machine) -> MachineReceipt:
    """Check a machine; remove the app's own record too where all else is gone, unless a role stays that needs it."""
    removal = scope.removal_from(machine)
    found = await receipt.read_receipt(machine, removal, came=machine.allocation_id not in scope.never_came)
    if not found.clean or not removal.whole_machine:
        return found
    with suppress(MachineUnreachableError):
        await teardown.ensure_record_forgotten(machine)
    return found.with_checks(*(await probe(machine, receipt.RECORD)).checks)


async def read_receipts(scope: Scope) -> list[MachineReceipt]:
    receipts = await on_each(scope.prepared, lambda machine: read_receipt_of(scope, machine))
    return list(receipts.values())


async def read_worker_receipts(scope: Scope) -> list[MachineReceipt]:
    """Check the machines of workers that leave a cluster which goes on, and that their node records are gone."""
    receipts = await on_each(scope.prepared, lambda machine: read_receipt_of(scope, machine))
    return [
        receipts[worker.hostname].with_checks(await nodes.read_record_check(scope.controller, worker.hostname))
        for worker in scope.workers
    ]


CANCEL = Phase("cancel-jobs", "Cancel jobs", ensure_jobs_cancelled)
NODES = Phase("delete-nodes", "Stop slurmd and delete the nodes", ensure_nodes_deleted)
STOP = Phase("stop-daemons", "Stop the daemons", ensure_daemons_stopped)
REMOVE = Phase("remove-packages", "Remove packages, data, users and files", ensure_machines_cleaned)

DECOMMISSION_PHASES = (CANCEL, NODES, STOP, REMOVE)
REMOVE_PHASES = (NODES, STOP, REMOVE)
PROVE = ("prove-removal", "Probe and write the receipt")
"""The step after them: everything left, and everything that could not be checked, fails it."""
