"""Instances, members and operations as the rules see them: built by a test from what matters to it."""

from typing import Any

from gpuaas_contract.instances import DesiredState, MemberStatus
from gpuaas_contract.manifest import Manifest
from gpuaas_contract.operations import Kind, OperationState
from gpuaas_platform.instances.rules.actions import Life

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


def operation(kind: str, member_id: str | None = None, **facts: Any) -> dict[str, Any]:
    """An operation as the rules get it: open, claimed, and the newest of its target, unless told otherwise."""
    return {
        "id": f"op_{kind}",
        "kind": kind,
        "state": OperationState.RUNNING,
        "queued": False,
        "member_id": member_id,
        "replacement_member_id": None,
        "component_key": NODE if member_id else None,
        "member_status": None,
        "replacement_status": None,
        "is_latest": True,
        "cancel_requested": False,
        "error": None,
        **facts,
    }


def ended(kind: str, state: OperationState, member_id: str | None = None, **facts: Any) -> dict[str, Any]:
    return operation(kind, member_id, state=state, **facts)


def member(status: str = MemberStatus.READY, **facts: Any) -> dict[str, Any]:
    return {
        "id": "mem_1",
        "component_key": NODE,
        "status": status,
        "replaces_member_id": None,
        "last_kind": Kind.DEPLOY,
        "last_state": OperationState.SUCCEEDED,
        **facts,
    }


def life(*open_operations: dict[str, Any], **facts: Any) -> Life:
    """A deployed instance that runs with its head and two nodes."""
    given: dict[str, Any] = {
        "id": "ins_1",
        "mode": None,
        "desired_state": DesiredState.RUNNING,
        "ended_at": None,
        "deployed": True,
        "last_operation": ended(Kind.DEPLOY, OperationState.SUCCEEDED),
        "open_operations": [*open_operations],
        "counts": {HEAD: (1, 1), NODE: (2, 2)},
    }
    return Life.of({**given, **facts}, MANIFEST)
