"""The status of an instance and the conditions that the platform finds by itself."""

from typing import Any

import pytest

from gpuaas_contract.instances import Condition, ConditionStatus, DesiredState, InstanceStatus, MemberStatus
from gpuaas_contract.manifest import RuntimeLabel
from gpuaas_contract.operations import Kind
from gpuaas_platform.instances.records import InstanceView
from gpuaas_platform.instances.rules.instances import derive_status, shown_conditions, status_reason, version_drift

from . import platform_test_lives
from .platform_test_lives import LONG_AGO, operation

YES, NO, UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN
EXPECTED = RuntimeLabel(name="demo", version="7")
AS_EXPECTED = version_drift(EXPECTED, "7", 1)
S = InstanceStatus
STOPPED, GOING = {"desired_state": DesiredState.STOPPED}, {"desired_state": DesiredState.DECOMMISSIONED}


def condition(kind: str, status: ConditionStatus = YES, generation: int = 1) -> Condition:
    return Condition(type=kind, status=status, observed_generation=generation)


def instance(*conditions: Condition, under_way: str | None = None, **facts: Any) -> InstanceView:
    """One that runs, and whose controller said nothing but the given conditions."""
    open_operations = (operation(under_way),) if under_way else ()
    return platform_test_lives.instance(conditions=conditions, open_operations=open_operations, **facts)


READY = condition("Ready")


@pytest.mark.parametrize(
    ("given", "status"),
    [
        (instance(under_way=Kind.DEPLOY), S.DEPLOYING),
        (instance(), S.FAILED),
        (instance(under_way=Kind.ADD), S.FAILED),
        (instance(failed=True), S.FAILED),
        (instance(ready_since=2, deployed=True), S.STARTING),
        (instance(READY, ready_since=2, deployed=True), S.STARTING),
        (instance(condition("Ready", NO), under_way=Kind.DEPLOY), S.DEPLOYING),
        (instance(condition("Ready", UNKNOWN), under_way=Kind.DEPLOY), S.DEPLOYING),
        (instance(READY), S.RUNNING),
        (instance(condition("Ready", YES, 5), ready_since=2), S.RUNNING),
        (instance(READY, failed=True), S.DEGRADED),
        (instance(READY, live_statuses=(MemberStatus.READY, MemberStatus.FAILED)), S.DEGRADED),
        (instance(READY, condition("Degraded")), S.DEGRADED),
        (instance(READY, condition("Degraded", NO)), S.RUNNING),
        (instance(READY, condition("Degraded", UNKNOWN)), S.UNKNOWN),
        (instance(READY, condition("Degraded", UNKNOWN), failed=True), S.DEGRADED),
        (instance(READY, condition("Degraded", UNKNOWN), under_way=Kind.RESTART), S.UPDATING),
        (instance(READY, condition("Degraded", UNKNOWN), **STOPPED), S.STOPPED),
        (instance(condition("Ready", UNKNOWN), deployed=True), S.UNKNOWN),
        (instance(condition("Ready", UNKNOWN), condition("Degraded"), deployed=True), S.DEGRADED),
        (instance(condition("Ready", NO), deployed=True), S.DEGRADED),
        (instance(condition("Ready", NO), deployed=True, under_way=Kind.UPGRADE), S.UPDATING),
        (instance(condition("Ready", NO), deployed=True, under_way=Kind.DEPLOY), S.DEPLOYING),
        (instance(condition("Ready", NO), deployed=True, ready_since=2), S.STARTING),
        (instance(condition("Ready", NO, 2), deployed=True, ready_since=2), S.DEGRADED),
        (instance(deployed=True), S.DEPLOYING),
        (instance(READY, under_way=Kind.UPGRADE), S.UPDATING),
        (instance(READY, under_way=Kind.CONFIGURE), S.UPDATING),
        (instance(READY, under_way=Kind.RESTART), S.UPDATING),
        (instance(READY, under_way=Kind.DRAIN), S.RUNNING),
        (instance(READY, under_way=Kind.START), S.STARTING),
        (instance(READY, **STOPPED), S.STOPPED),
        (instance(READY, under_way=Kind.STOP, **STOPPED), S.STOPPING),
        (instance(READY, failed=True, **STOPPED), S.FAILED),
        (instance(READY, failed=True, under_way=Kind.STOP, **STOPPED), S.STOPPING),
        (instance(READY, **GOING), S.DECOMMISSIONING),
        (instance(READY, failed=True, **GOING), S.FAILED),
        (instance(READY, ended_at=LONG_AGO, failed=True, **GOING), S.DECOMMISSIONED),
    ],
)
def test_the_status(given: InstanceView, status: InstanceStatus) -> None:
    assert derive_status(given) == status


def test_the_reason_is_in_the_words_of_whoever_found_it() -> None:
    def said(*conditions: Condition, **facts: Any) -> str:
        given = instance(*conditions, **facts)
        return status_reason(given, derive_status(given))

    doubt = condition("Degraded", UNKNOWN).model_copy(update={"message": "node-2 does not answer"})
    fault = condition("Degraded", YES).model_copy(update={"message": "node-2 is down"})
    assert said(READY, last_failure="drain: it was long ago") == ""
    assert said() == "deploy: it was cancelled"
    assert said(failed=True, last_failure="deploy: no room") == "deploy: no room"
    assert said(READY, doubt, last_failure="drain: it was long ago") == "node-2 does not answer"
    assert said(READY, fault, last_failure="drain: it was long ago") == "node-2 is down"
    assert said(READY, fault, failed=True, last_failure="add: just now") == "add: just now"
    assert said(READY, live_statuses=(MemberStatus.FAILED,), last_failure="add: before") == "add: before"


@pytest.mark.parametrize(
    ("observed", "status"), [(None, UNKNOWN), ("7", NO), ("demo 7", NO), ("8", YES), ("demo 8", YES), ("other 7", YES)]
)
def test_the_version(observed: str | None, status: ConditionStatus) -> None:
    drift = version_drift(EXPECTED, observed, 3)
    assert (drift.type, drift.status, drift.observed_generation) == ("VersionDrift", status, 3)


@pytest.mark.parametrize(
    ("given", "observed", "status", "reason"),
    [
        (instance(READY), "7", YES, "Observed"),
        (instance(READY, under_way=Kind.DRAIN), "7", NO, "UnderWay"),
        (instance(READY, failed=True), "7", NO, "Failed"),
        (instance(READY), "8", NO, "VersionDrift"),
        (instance(READY), None, YES, "Observed"),
        (instance(), "7", UNKNOWN, "NotObserved"),
        (instance(READY, generation=2), "7", UNKNOWN, "NotObserved"),
    ],
)
def test_whether_it_is_as_it_is_wanted(
    given: InstanceView, observed: str | None, status: ConditionStatus, reason: str
) -> None:
    *_, found = shown_conditions(given, version_drift(EXPECTED, observed, 1))
    assert (found.type, found.status, found.reason) == ("InSync", status, reason)
    assert found.observed_generation == given.generation


def test_an_app_speaks_of_its_sync_itself_and_never_of_the_drift() -> None:
    own, forged = condition("InSync", NO), condition("VersionDrift", NO)
    assert shown_conditions(instance(READY, own, forged), AS_EXPECTED) == [READY, own, AS_EXPECTED]
