"""Whether many operations together did what was asked."""

from collections.abc import Mapping
from dataclasses import replace

from gpuaas_contract.bulk import AtLeast, BulkPolicy, BulkState, Policy
from gpuaas_contract.operations import Kind, OperationState
from gpuaas_platform.instances.records import InstanceView
from gpuaas_platform.operations.records import OpenOperation


def needed(policy: BulkPolicy, count: int) -> int:
    """Say how many have to succeed out of `count` that were asked for."""
    if isinstance(policy, AtLeast):
        return policy.at_least
    return count if policy == Policy.ALL_OR_NOTHING else 1


def outlook(states: Mapping[str, str]) -> tuple[int, int]:
    """Count how many have succeeded, and how many still may."""
    succeeded = sum(state == OperationState.SUCCEEDED for state in states.values())
    return succeeded, sum(not OperationState(state).is_final for state in states.values())


def state_of(policy: BulkPolicy, states: Mapping[str, str], count: int) -> BulkState:
    succeeded, unfinished = outlook(states)
    if unfinished:
        return BulkState.RUNNING
    return BulkState.SUCCEEDED if succeeded >= needed(policy, count) else BulkState.FAILED


def with_operation(instance: InstanceView, operation: OpenOperation, component_key: str) -> InstanceView:
    """Return the instance as it is once the operation was made, where no other one is open on its member."""
    counts = dict(instance.counts or {})
    present, staying = counts.get(component_key, (0, 0))
    if operation.kind == Kind.ADD:
        counts[component_key] = [present + 1, staying + 1]
    elif operation.kind == Kind.REMOVE:
        counts[component_key] = [present, staying - 1]
    return replace(instance, counts=counts, open_operations=(*instance.open_operations, operation))
