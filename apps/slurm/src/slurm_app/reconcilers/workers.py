"""Prepare a worker, join it, and report that: the part that several kinds of operations share."""

from gpuaas_contract.base import JsonObject
from gpuaas_contract.instances import ConditionStatus, Instance, Member, MemberStatus
from gpuaas_sdk import OperationContext, run_phases
from slurm_app.access_notes import refresh_access_notes
from slurm_app.phases import PREPARE_PHASES, PROVE_WORKER, SAVE_WORKER, WORKER_CONFIGURATION, WORKERS
from slurm_app.reconcilers.cluster import PREPARED, Cluster, munge_key, version_number, wanted_features
from slurm_app.reconcilers.limits import report_worker
from slurm_app.reconcilers.records import store_records
from slurm_app.scope import Scope
from slurm_app.slurm import facts
from slurm_app.store import Store

POLL_SECONDS = 0.3


def is_ready(instance: Instance) -> bool:
    return any(c.type == "Ready" and c.status == ConditionStatus.TRUE for c in instance.conditions)


async def join(
    operation: OperationContext, store: Store, cluster: Cluster, member: Member, key: bytes | None = None
) -> JsonObject:
    """Join the worker; no machine but its own and the controller's is touched."""
    features = wanted_features(member, operation.operation.input)
    key = key or await munge_key(operation, cluster)
    scope = cluster.scope(operation, [member], targets=[member], munge_key=key, features=features)
    if member.allocation_id != cluster.controller.allocation_id:
        # Its machine is made ready while the controller's is.
        versions = await prepare(operation, store, scope)
        await wait_for_controller(operation, cluster.controller)
    else:
        controller = await wait_for_controller(operation, cluster.controller)
        if is_prepared(operation, controller, member):
            versions = controller.adapter_detail["versions"]
        else:
            versions = await prepare(operation, store, scope)
    # Before it can be known to slurmctld: a successor has to find it there.
    await store.remember_node(member.id, cluster.instance.id, member.allocation_id, scope.workers[0].hostname)
    joined = (await run_phases(operation, scope, [WORKERS]))[WORKERS.key]
    if is_ready(await operation.instance()):
        # While the cluster is being deployed, its deploy runs the first job over all workers together; nobody relies
        # on a worker before that, and the seconds until it is written down would be seconds until the first job.
        proven = await run_phases(operation, scope, [PROVE_WORKER, SAVE_WORKER])
        await report_worker(operation, member.id, scope.workers[0].hostname, proven[PROVE_WORKER.key])
        await refresh_access_notes(operation, cluster)
    await report_joined(operation, member, scope, features, versions)
    return {"joined": joined}


async def prepare(operation: OperationContext, store: Store, scope: Scope) -> dict[str, str]:
    """Do all that needs no slurmctld; return the versions of the installed daemons."""
    await run_phases(operation, scope, PREPARE_PHASES)
    if operation.operation.kind != "recover":
        # Whether that of a worker that had joined before may be changed depends on its jobs.
        await run_phases(operation, scope, [WORKER_CONFIGURATION])
    await store_records(operation, store, scope.prepared)
    return await facts.read_versions(scope.workers[0])


def is_prepared(operation: OperationContext, controller: Member, member: Member) -> bool:
    """Whether this is the first try of the add that came with a deploy, which has just prepared both roles."""
    asked = operation.operation
    return asked.kind == "add" and asked.attempt == 1 and member.id in controller.adapter_detail.get(PREPARED, [])


async def report_joined(
    operation: OperationContext, member: Member, scope: Scope, features: tuple[str, ...], versions: dict[str, str]
) -> None:
    (worker,) = scope.workers
    await operation.client.members.report(
        member.id,
        operation,
        status=MemberStatus.READY,
        adapter_detail={"node": worker.hostname, "features": list(features), "versions": versions},
        observed_runtime=version_number(versions["slurmd"]),
    )


async def wait_for_controller(operation: OperationContext, controller: Member) -> Member:
    """Ask for that member alone: every worker of a deploy waits here, while the machines are busy installing."""
    async with operation.step("wait-for-controller", "Wait for the controller"):
        (ready,) = await operation.wait_for_members(
            [controller.id], every=POLL_SECONDS, failure_code="controller_failed"
        )
    return ready
