"""An event that is a new status is named like it: what the platform makes of a status is always an event."""

from enum import Enum

import pytest

from gpuaas_contract.allocations import AllocationStatus
from gpuaas_contract.artifacts import ArtifactStatus
from gpuaas_contract.catalogue import AppVersionStatus
from gpuaas_contract.events import (
    AllocationEvent,
    AppVersionEvent,
    ArtifactEvent,
    Event,
    GrantEvent,
    MemberEvent,
    NodeEvent,
    OperationEvent,
    VolumeEvent,
)
from gpuaas_contract.grants import GrantStatus
from gpuaas_contract.instances import MemberStatus
from gpuaas_contract.nodes import NodeStatus
from gpuaas_contract.operations import OperationState, StepStatus
from gpuaas_contract.volumes import VolumeStatus

NEVER_TOLD = {
    AllocationStatus.REQUESTED,
    AppVersionStatus.PUBLISHED,
    GrantStatus.PENDING,
    NodeStatus.ENROLLING,
    OperationState.PENDING,
    OperationState.RUNNING,
    VolumeStatus.UNPLACED,
}
"""A thing begins with these, and its first event says so in other words; operations have others for two of them."""


@pytest.mark.parametrize(
    ("status", "event"),
    [
        (AllocationStatus, AllocationEvent),
        (AppVersionStatus, AppVersionEvent),
        (ArtifactStatus, ArtifactEvent),
        (GrantStatus, GrantEvent),
        (MemberStatus, MemberEvent),
        (NodeStatus, NodeEvent),
        (OperationState, OperationEvent),
        (VolumeStatus, VolumeEvent),
    ],
)
def test_every_status_is_an_event(status: type[Enum], event: type[Event]) -> None:
    missing = {each for each in status if each not in NEVER_TOLD} - {each for each in status if each.value in {*event}}
    assert missing == set()


def test_every_status_of_a_step_is_an_event_of_its_operation() -> None:
    assert {f"step_{status.value}" for status in StepStatus} <= {*OperationEvent}


def test_what_a_volume_and_its_machine_both_show_has_one_name() -> None:
    both = {"volume_wanted", "volume_waits", "attaching", "attached", "attach_failed"}
    both |= {"detaching", "detached", "detach_failed"}
    assert both <= {*AllocationEvent} & {*VolumeEvent}
