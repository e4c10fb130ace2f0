"""deploy: from an empty machine to a cluster that ran its first job."""

from dataclasses import replace
from datetime import UTC, datetime

from gpuaas_contract.base import JsonObject
from gpuaas_contract.instances import MemberStatus
from gpuaas_sdk import OperationContext, Phase, member_in_work, run_phases
from slurm_app.access_notes import access_notes
from slurm_app.phases import CONTROLLER_PHASES, run_first_job
from slurm_app.reconcilers import people
from slurm_app.reconcilers.cluster import (
    PREPARED,
    WORKER,
    Cluster,
    condition,
    munge_key,
    node_name,
    version_number,
)
from slurm_app.reconcilers.limits import as_condition, verdict_of
from slurm_app.reconcilers.records import store_records
from slurm_app.scope import Scope
from slurm_app.slurm import facts
from slurm_app.store import Store

POLL_SECONDS = 0.15


async def reconcile(operation: OperationContext, store: Store) -> JsonObject:
    """The controller first; its workers join by operations of their own; then the first job over all of them."""
    cluster = await Cluster.read(operation, store)
    async with member_in_work(operation, cluster.controller):
        key = await munge_key(operation, cluster)
        scope = cluster.scope(operation, cluster.workers_beside, munge_key=key)
        scope = replace(scope, memory_per_cpu=await _memory_per_cpu(operation, cluster))
        evidence = await run_phases(operation, scope, CONTROLLER_PHASES)
        versions = await facts.read_versions(scope.controller)
    version = version_number(versions["slurmctld"])
    await operation.client.members.report(
        cluster.controller.id,
        operation,
        status=MemberStatus.READY,
        adapter_detail={
            "node": scope.controller.hostname,
            "versions": versions,
            PREPARED: [worker.id for worker in cluster.workers_beside],
            **evidence["configure-cluster"],
        },
        observed_runtime=version,
    )
    await store_records(operation, store, scope.prepared)
    # While the workers join: nobody's first submission meets a cluster that does not know them.
    await people.sync(operation, cluster)
    cluster = await _wait_for_workers(operation, store)
    hosts = tuple(node_name(worker) for worker in cluster.workers)
    first_job: Phase[Scope] = Phase("run-first-job", "Run the first job", lambda scope: run_first_job(scope, hosts))
    job = await run_phases(operation, scope, [first_job])
    seconds = round((datetime.now(UTC) - operation.operation.created_at).total_seconds(), 1)
    await _report_ready(operation, cluster, version, seconds, job[first_job.key])
    return {"time_to_first_job_seconds": seconds, "first_job": job[first_job.key]}


async def _wait_for_workers(operation: OperationContext, store: Store) -> Cluster:
    async with operation.step("wait-for-workers", "Wait for the workers") as step:
        workers = await operation.wait_for_members(
            component_key=WORKER, every=POLL_SECONDS, failure_code="worker_failed"
        )
        step.message = f"{len(workers)} ready"
    return await Cluster.read(operation, store)


async def _memory_per_cpu(operation: OperationContext, cluster: Cluster) -> int:
    """Return the share of a processor on the worker that has least for each: jobs that ask for none fit any worker."""
    found = []
    for worker in cluster.workers:
        shape = (await operation.client.allocations.get(worker.allocation_id)).shape
        beside = worker.allocation_id == cluster.controller.allocation_id
        found.append(facts.memory_for_jobs(shape.memory_mib, beside_controller=beside) // shape.cpus)
    return min(found, default=0)


async def _report_ready(
    operation: OperationContext, cluster: Cluster, version: str, seconds: float, first_job: JsonObject
) -> None:
    generation = cluster.instance.generation
    limits = verdict_of(first_job, "")
    words = f"the first job finished {seconds} s after the request"
    await operation.report_instance(
        conditions=[
            condition("Ready", True, "FirstJobFinished", words, generation),
            condition("InSync", True, "Deployed", "", generation),
            condition("Degraded", False, "", "", generation),
            *([as_condition(limits, generation)] if limits else []),
        ],
        access_notes=await access_notes(operation, cluster),
        observed_runtime=version,
    )
