"""deploy: the controller first; its workers join by operations of their own; then the roll is complete."""

from gpuaas_contract.base import JsonObject
from gpuaas_contract.instances import AccessNote, Condition, ConditionStatus, MemberStatus
from gpuaas_sdk import OperationContext, member_in_work, run_phases

from reference_app import phases
from reference_app.cluster import TOKEN, Cluster
from reference_app.phases import PROVE, Work
from reference_app.software import PROGRAM, Role

POLL_SECONDS = 0.3
_JOINED = set(MemberStatus) - {MemberStatus.PENDING, MemberStatus.CONFIGURING, MemberStatus.FAILED}


async def reconcile(operation: OperationContext) -> JsonObject:
    cluster = await Cluster.read(operation)
    async with member_in_work(operation, cluster.controller):
        evidence = await run_phases(operation, Work(cluster, cluster.controller), phases.ALL)
    await operation.report_member(cluster.controller.id, status=MemberStatus.READY, adapter_detail=evidence[PROVE.key])
    await _wait_for_workers(operation)
    await report_ready(operation, cluster, str(evidence[PROVE.key]["version"]))
    return {"roll": len(cluster.workers)}


async def _wait_for_workers(operation: OperationContext) -> None:
    async with operation.step("wait-for-workers", "Wait for the workers") as step:
        joined = await operation.wait_for_members(
            component_key=Role.WORKER, status=_JOINED, every=POLL_SECONDS, failure_code="worker_failed"
        )
        step.message = f"{len(joined)} ready"


async def report_ready(operation: OperationContext, cluster: Cluster, version: str) -> None:
    instance = cluster.instance
    machine = await operation.client.allocations.get(cluster.controller.allocation_id)

    def condition(kind: str, holds: bool, reason: str) -> Condition:
        status = ConditionStatus.TRUE if holds else ConditionStatus.FALSE
        return Condition(type=kind, status=status, reason=reason, observed_generation=instance.generation)

    await operation.report_instance(
        conditions=[
            condition("Ready", True, "RollAnswers"),
            condition("InSync", True, operation.operation.kind.capitalize()),
            condition("Degraded", False, ""),
            condition("VersionDrift", version != instance.versions.expected_runtime, "Compared"),
        ],
        access_notes=[
            AccessNote(
                title="Call the roll",
                command=f"gpuaas ssh {machine.name} -- {PROGRAM} ask GET /health",
            ),
            AccessNote(
                title="Read the token",
                command=f"gpuaas secret read {instance.name} {TOKEN}",
                text=f"It lets you drain and resume workers: pipe it into {PROGRAM} ask --token-stdin POST /drain …",
            ),
        ],
        observed_runtime=version,
    )


async def report_not_ready(operation: OperationContext, cluster: Cluster, reason: str) -> None:
    """Nobody should use it now, nor find instructions how to."""
    gone = [
        Condition(
            type=kind, status=ConditionStatus.FALSE, reason=reason, observed_generation=cluster.instance.generation
        )
        for kind in ("Ready", "InSync")
    ]
    await operation.report_instance(conditions=gone, access_notes=[])
