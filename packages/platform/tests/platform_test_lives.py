"""Instances, members and operations as the rules see them: built by a test from what matters to it."""

from dataclasses import fields
from datetime import UTC, datetime
from typing import Any, TypeVar

from gpuaas_contract.instances import DesiredState, MemberStatus
from gpuaas_contract.manifest import Manifest
from gpuaas_contract.operations import Kind, OperationState
from gpuaas_platform.core.records import Record
from gpuaas_platform.instances.records import InstanceSummary, InstanceView, MemberView
from gpuaas_platform.instances.rules.actions import InstanceFacts
from gpuaas_platform.operations.records import OpenOperation, OperationView

R = TypeVar("R", bound=Record)

HEAD, NODE = "head", "node"
MANIFEST = Manifest.model_validate(
    {
        "schema": "gpuaas.app/v1",
        "slug": "demo",
        "title": "Demo",
        "version": "1.0.0",
        "runtime": {"name": "demo", "version": "7"},
        "components": [
            {"key": HEAD, "title": "Head", "primary": True},
            {"key": NODE, "title": "Node", "min": 1, "max": 3},
        ],
        "modes": [
            {"key": "small", "title": "Small", "limits": [{"component": NODE, "min": 2, "max": 2}]},
            {"key": "fixed", "title": "Fixed", "actions": [Kind.RESTART, Kind.DRAIN]},
        ],
        "operations": [
            *({"kind": kind, "title": kind.title()} for kind in Kind if kind != Kind.ADD),
            {"kind": Kind.ADD, "title": "Add", "component": NODE},
            {"kind": "polish", "title": "Polish", "component": NODE},
            {"kind": "survey", "title": "Survey"},
        ],
    }
)
INSTANCE_KINDS = (Kind.START, Kind.STOP, Kind.RESTART, Kind.UPGRADE, Kind.CONFIGURE, Kind.DECOMMISSION, "survey")
MEMBER_KINDS = (Kind.DRAIN, Kind.RESUME, Kind.REMOVE, Kind.REPLACE, Kind.RECOVER, "polish")
LONG_AGO = datetime(2030, 1, 1, tzinfo=UTC)


def record(kind: type[R], /, **facts: Any) -> R:
    """A record with None for every column that does not matter to a test."""
    assert facts.keys() <= {field.name for field in fields(kind)}, "no such column"
    return kind(**{field.name: facts.get(field.name) for field in fields(kind)})


def operation(kind: str, member_id: str | None = None, **facts: Any) -> OperationView:
    """An operation as the rules get it: open, claimed, and the newest of its target, unless told otherwise."""
    given = {
        "id": f"op_{kind}",
        "kind": kind,
        "state": OperationState.RUNNING,
        "queued": False,
        "member_id": member_id,
        "component_key": NODE if member_id else None,
        "is_latest": True,
        "cancel_requested": False,
    }
    return record(OperationView, **{**given, **facts})


def ended(kind: str, state: OperationState, member_id: str | None = None, **facts: Any) -> OperationView:
    return operation(kind, member_id, state=state, **facts)


def member(status: MemberStatus = MemberStatus.READY, **facts: Any) -> MemberView:
    given = {
        "id": "mem_1",
        "component_key": NODE,
        "status": status,
        "last_kind": Kind.DEPLOY,
        "last_state": OperationState.SUCCEEDED,
    }
    return record(MemberView, **{**given, **facts})


def instance(**facts: Any) -> InstanceView:
    """An instance that runs, and whose controller reported nothing."""
    given = {
        "id": "ins_1",
        "desired_state": DesiredState.RUNNING,
        "failed": False,
        "live_statuses": (MemberStatus.READY,),
        "open_operations": (),
        "conditions": (),
        "ready_since": 1,
        "generation": 1,
    }
    return record(InstanceView, **{**given, **facts})


def instance_facts(*open_operations: OpenOperation, **facts: Any) -> InstanceFacts:
    """A deployed instance that runs with its head and two nodes."""
    given: dict[str, Any] = {
        "id": "ins_1",
        "desired_state": DesiredState.RUNNING,
        "deployed": True,
        "last_operation": ended(Kind.DEPLOY, OperationState.SUCCEEDED),
        "open_operations": open_operations,
        "counts": {HEAD: [1, 1], NODE: [2, 2]},
    }
    return InstanceFacts.of(record(InstanceSummary, **{**given, **facts}), MANIFEST)
