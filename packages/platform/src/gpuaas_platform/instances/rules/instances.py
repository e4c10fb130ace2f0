"""Derive the status of an instance, and the conditions that the platform finds by itself."""

from collections.abc import Iterable

from gpuaas_contract.instances import Condition, ConditionStatus, DesiredState, InstanceStatus, MemberStatus
from gpuaas_contract.manifest import RuntimeLabel
from gpuaas_contract.operations import Kind
from gpuaas_platform.instances.records import InstanceView

READY = "Ready"
DEGRADED = "Degraded"
IN_SYNC = "InSync"
VERSION_DRIFT = "VersionDrift"
_UPDATES = {Kind.UPGRADE, Kind.CONFIGURE, Kind.RESTART}


def _find(conditions: Iterable[Condition], kind: str) -> Condition | None:
    return next((condition for condition in conditions if condition.type == kind), None)


def _is_true(conditions: Iterable[Condition], kind: str, since: int) -> bool:
    found = _find(conditions, kind)
    return found is not None and found.status == ConditionStatus.TRUE and found.observed_generation >= since


def _is(found: Condition | None, *statuses: ConditionStatus) -> bool:
    return found is not None and found.status in statuses


def derive_status(instance: InstanceView) -> InstanceStatus:
    """Derive it from what is wanted, what the controller reported, and how the newest operations ended.

    An instance that was ready stays ready while members come and go; after a stop it has to be reported anew. One that
    was deployed and is reported as not ready any more is degraded; where the controller cannot tell, it is unknown."""
    failed, members = instance.failed, instance.live_statuses
    under_way = {operation.kind for operation in instance.open_operations}
    if instance.ended_at is not None:
        return InstanceStatus.DECOMMISSIONED
    if instance.desired_state == DesiredState.DECOMMISSIONED:
        return InstanceStatus.FAILED if failed else InstanceStatus.DECOMMISSIONING
    if instance.desired_state == DesiredState.STOPPED:
        if Kind.STOP in under_way:
            return InstanceStatus.STOPPING
        return InstanceStatus.FAILED if failed else InstanceStatus.STOPPED
    if Kind.START in under_way:
        return InstanceStatus.STARTING
    ready, degraded = _find(instance.conditions, READY), _find(instance.conditions, DEGRADED)
    if not _is_true(instance.conditions, READY, instance.ready_since):
        if failed or _is_called_off(instance):
            return InstanceStatus.FAILED
        if not _came_up(instance, ready):
            return InstanceStatus.STARTING if instance.ready_since > 1 else InstanceStatus.DEPLOYING
    if failed or MemberStatus.FAILED in members or _is(degraded, ConditionStatus.TRUE):
        return InstanceStatus.DEGRADED
    if under_way & _UPDATES:
        return InstanceStatus.UPDATING
    if _is(ready, ConditionStatus.FALSE):
        return InstanceStatus.DEGRADED
    if _is(ready, ConditionStatus.UNKNOWN) or _is(degraded, ConditionStatus.UNKNOWN):
        return InstanceStatus.UNKNOWN
    return InstanceStatus.RUNNING


def _came_up(instance: InstanceView, ready: Condition | None) -> bool:
    """Tell whether the deploy, or the newest start, is over, so that `Ready` speaks of what runs since."""
    reported = ready is not None and ready.observed_generation >= instance.ready_since
    return reported and instance.deployed and not {Kind.DEPLOY, Kind.START} & {o.kind for o in instance.open_operations}


def _is_called_off(instance: InstanceView) -> bool:
    """Tell whether the deploy was cancelled: nothing works on it, and it never succeeded."""
    return not instance.deployed and all(operation.kind != Kind.DEPLOY for operation in instance.open_operations)


def status_reason(instance: InstanceView, status: InstanceStatus) -> str:
    """Say why an instance is not well, in the words of whoever found it."""
    if status == InstanceStatus.FAILED or (status == InstanceStatus.DEGRADED and instance.failed):
        cancelled = not instance.failed and _is_called_off(instance)
        return "deploy: it was cancelled" if cancelled else instance.last_failure or ""
    sought = {
        InstanceStatus.DEGRADED: {(DEGRADED, ConditionStatus.TRUE), (READY, ConditionStatus.FALSE)},
        InstanceStatus.UNKNOWN: {(DEGRADED, ConditionStatus.UNKNOWN), (READY, ConditionStatus.UNKNOWN)},
    }.get(status, set())
    said = [c.message or c.reason for c in instance.conditions if (c.type, c.status) in sought]
    if not said and status == InstanceStatus.DEGRADED:
        return instance.last_failure or ""
    return "; ".join(said)


def version_drift(expected: RuntimeLabel, observed: str | None, generation: int) -> Condition:
    """Compare what the software itself reports with what the catalogue expects of this version."""
    wanted = f"{expected.name} {expected.version}"
    if observed is None:
        status, reason, message = ConditionStatus.UNKNOWN, "NotObserved", "no version was reported yet"
    elif observed in {wanted, expected.version}:
        status, reason, message = ConditionStatus.FALSE, "AsExpected", f"{wanted}, as expected"
    else:
        status, reason = ConditionStatus.TRUE, "OtherVersion"
        message = f"{wanted} is expected, {observed} was observed"
    return Condition(type=VERSION_DRIFT, status=status, reason=reason, message=message, observed_generation=generation)


def shown_conditions(instance: InstanceView, drift: Condition) -> list[Condition]:
    """List what was reported and what the platform knows itself; an app may speak of `InSync` in its own words."""
    reported = [condition for condition in instance.conditions if condition.type != VERSION_DRIFT]
    conditions = [*reported, drift]
    if _find(reported, IN_SYNC) is None:
        conditions.append(_in_sync(instance, drift))
    return conditions


def _in_sync(instance: InstanceView, drift: Condition) -> Condition:
    generation = instance.generation
    ready = _find(instance.conditions, READY)
    status, reason, message = ConditionStatus.TRUE, "Observed", "what is wanted was observed"
    if instance.open_operations:
        first = instance.open_operations[0]
        status, reason, message = ConditionStatus.FALSE, "UnderWay", f"operation {first.id} ({first.kind})"
    elif instance.failed:
        status, reason, message = ConditionStatus.FALSE, "Failed", "the newest operation failed"
    elif drift.status == ConditionStatus.TRUE:
        status, reason, message = ConditionStatus.FALSE, "VersionDrift", drift.message
    elif ready is None or ready.observed_generation < generation:
        status, reason = ConditionStatus.UNKNOWN, "NotObserved"
        message = f"nothing was reported about generation {generation} yet"
    return Condition(type=IN_SYNC, status=status, reason=reason, message=message, observed_generation=generation)
