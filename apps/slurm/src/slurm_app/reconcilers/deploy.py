"""deploy: from an empty machine to a cluster that ran its first job."""

import asyncio
from datetime import UTC, datetime

from gpuaas_contract.base import JsonObject
from gpuaas_contract.instances import Condition, ConditionStatus, MemberStatus
from gpuaas_sdk import Machine, OperationContext, OperationFailed
from slurm_app.access_notes import access_notes
from slurm_app.phases import CONTROLLER_PHASES, FIRST_JOB
from slurm_app.reconcilers.cluster import Cluster, member_in_work
from slurm_app.reconcilers.seam import run_phases

POLL_SECONDS = 0.3


async def reconcile(operation: OperationContext) -> JsonObject:
    """The controller first; its workers join by operations of their own; then the first job over all of them."""
    cluster = await Cluster.read(operation)
    async with member_in_work(operation, cluster.controller):
        scope = cluster.scope(operation, cluster.workers)
        evidence = await run_phases(operation, scope, CONTROLLER_PHASES)
    version = await read_version(scope.controller)
    await operation.report_member(
        cluster.controller.id,
        status=MemberStatus.READY,
        adapter_detail={"version": version, **evidence["configure-cluster"]},
    )
    await _wait_for_workers(operation)
    job = await run_phases(operation, scope, (FIRST_JOB,))
    seconds = round((datetime.now(UTC) - operation.operation.created_at).total_seconds(), 1)
    await _report_ready(operation, cluster, version, seconds)
    return {"time_to_first_job_seconds": seconds, "first_job": job[FIRST_JOB.key]}


async def read_version(controller: Machine) -> str:
    """What the daemon says of itself: Debian's says `slurm-wlm 22.05.8`."""
    result = await controller.read("slurmctld -V")
    if not result.ok:
        raise OperationFailed("version_unknown", f"slurmctld does not say its version: {result.stderr}", retryable=True)
    return result.stdout.strip()


async def _wait_for_workers(operation: OperationContext) -> None:
    async with operation.step("wait-for-workers", "Wait for the workers") as step:
        while True:
            workers = (await Cluster.read(operation)).workers
            failed = [worker.id for worker in workers if worker.status == MemberStatus.FAILED]
            if failed:
                raise OperationFailed(
                    "worker_failed", f"{', '.join(failed)} did not join; retry its operation, then this", retryable=True
                )
            if all(worker.status == MemberStatus.READY for worker in workers):
                step.message = f"{len(workers)} ready"
                return
            await asyncio.sleep(POLL_SECONDS)


async def _report_ready(operation: OperationContext, cluster: Cluster, version: str, seconds: float) -> None:
    instance = cluster.instance
    expected = instance.versions.expected_runtime

    def condition(kind: str, holds: bool, reason: str, message: str) -> Condition:
        status = ConditionStatus.TRUE if holds else ConditionStatus.FALSE
        return Condition(
            type=kind, status=status, reason=reason, message=message, observed_generation=instance.generation
        )

    await operation.report_instance(
        conditions=[
            condition("Ready", True, "FirstJobFinished", f"the first job finished {seconds} s after the request"),
            condition("InSync", True, "Deployed", ""),
            condition("Degraded", False, "", ""),
            condition("VersionDrift", _number(version) != _number(expected), "Compared", f"{expected} expected"),
        ],
        access_notes=await access_notes(operation, cluster),
        observed_runtime=version,
    )


def _number(version: str) -> str:
    """The number alone: distributions name the same release differently."""
    return version.split()[-1]
