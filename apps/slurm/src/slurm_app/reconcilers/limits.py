"""The condition LimitsEnforced: what the last proof of each worker says of the whole cluster."""

from gpuaas_contract.base import JsonObject
from gpuaas_contract.instances import Condition, ConditionStatus, Instance
from gpuaas_sdk import OperationContext
from slurm_app.reconcilers.cluster import condition
from slurm_app.slurm.limit_probe import CONDITION, Verdict, busy


def as_condition(verdict: Verdict, generation: int) -> Condition:
    return condition(CONDITION, verdict.holds, verdict.reason, verdict.message[:1_000], generation)


def verdict_of(evidence: JsonObject, host: str) -> Verdict | None:
    """Read it from the evidence of the step that ran the job; None where an earlier version ran it."""
    if "busy" in evidence:
        return busy(host)
    said = evidence.get("limits")
    return Verdict(said["holds"], said["reason"], said["message"]) if said else None


def present(instance: Instance) -> Condition | None:
    return next((each for each in instance.conditions if each.type == CONDITION), None)


async def report_worker(operation: OperationContext, member_id: str, host: str, evidence: JsonObject) -> None:
    """On the worker itself; and on the instance, unless that already says something of another worker."""
    verdict = verdict_of(evidence, host)
    if verdict is None:
        return
    instance = await operation.instance()
    said = as_condition(verdict, instance.generation)
    await operation.report_member(member_id, conditions=[said])
    before = present(instance)
    others_doubt = before is not None and before.status != ConditionStatus.TRUE and host not in before.message
    if verdict.holds is False or not others_doubt:
        await operation.report_instance(conditions=[said])
