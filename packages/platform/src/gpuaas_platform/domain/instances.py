"""What follows from the state of an instance: its status, and what can be done next."""

from collections.abc import Iterable, Mapping
from typing import Any

from gpuaas_contract.instances import ConditionStatus, DesiredState, InstanceStatus, MemberStatus
from gpuaas_contract.operations import RESIZE, Kind, OperationState
from gpuaas_contract.problems import AllowedAction

Row = Mapping[str, Any]


def _condition_is_true(conditions: Iterable[Row], kind: str, generation: int) -> bool:
    return any(
        c["type"] == kind and c["status"] == ConditionStatus.TRUE and c["observed_generation"] == generation
        for c in conditions
    )


def derive_status(instance: Row, member_statuses: Iterable[str], last_states: Iterable[str]) -> InstanceStatus:
    """`last_states` holds the state of the newest operation of each member, and of the instance itself."""
    states = list(last_states)
    failed = OperationState.FAILED in states
    if instance["desired_state"] == DesiredState.DECOMMISSIONED:
        if all(status == MemberStatus.REMOVED for status in member_statuses) and not failed:
            still_working = any(not OperationState(state).is_final for state in states)
            return InstanceStatus.DECOMMISSIONING if still_working else InstanceStatus.DECOMMISSIONED
        return InstanceStatus.FAILED if failed else InstanceStatus.DECOMMISSIONING
    ready = _condition_is_true(instance["conditions"], "Ready", instance["generation"])
    if not ready:
        return InstanceStatus.FAILED if failed else InstanceStatus.DEPLOYING
    if failed or _condition_is_true(instance["conditions"], "Degraded", instance["generation"]):
        return InstanceStatus.DEGRADED
    return InstanceStatus.RUNNING


def instance_actions(instance: Row, status: InstanceStatus) -> list[AllowedAction]:
    if status == InstanceStatus.DECOMMISSIONED or instance["desired_state"] == DesiredState.DECOMMISSIONED:
        return []
    return [
        AllowedAction(
            action="decommission",
            title="Tear the instance down and free its machines",
            method="POST",
            href=f"/v1/app-instances/{instance['id']}/operations",
        )
    ]


def operation_actions(operation: Row, *, is_latest: bool) -> list[AllowedAction]:
    """A failed operation is retried in place, unless a later one took over its target."""
    error = operation["error"] or {}
    if operation["kind"] in {RESIZE, Kind.PREFLIGHT}:
        return []  # The resize is asked for again, with the size that is wanted then.
    if operation["state"] == OperationState.FAILED and is_latest and error.get("retryable", True):
        return [
            AllowedAction(
                action="retry",
                title="Run the operation again from its first step",
                method="POST",
                href=f"/v1/operations/{operation['id']}/retry",
            )
        ]
    return []
