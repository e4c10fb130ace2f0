"""Allocations, their timeline and their usage as the database has them."""

from dataclasses import dataclass
from datetime import datetime

from gpuaas_contract.allocations import Activity, AllocationStatus, Shape
from gpuaas_contract.usage import UsageKind, UsedShape
from gpuaas_contract.volumes import AllocationVolume
from gpuaas_platform.core.records import Record


@dataclass(frozen=True, slots=True)
class AllocationRecord(Record):
    """An allocation by itself, as every change of it returns it."""

    id: str
    tenant_id: str
    project_id: str | None
    owner_id: str
    """Its project, or its tenant where it belongs to no project."""
    name: str
    hostname: str
    shape: Shape
    image: str | None
    status: AllocationStatus
    reason: str
    activity: Activity | None
    wanted_shape: Shape | None
    asked_operation_ids: tuple[str, ...]
    node_id: str | None
    """None until it is placed, and for an external machine."""
    address: str | None
    network_id: str | None
    network_policy_id: str | None
    project_network_id: str | None
    authority_oldest: int
    authority_newest: int
    """The machine trusts the versions of its owner's SSH authority between these two."""
    correlation_id: str
    """Of the request that it was made for."""
    revision: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class AllocationView(AllocationRecord):
    """An allocation with its owner's network, its charge, its volumes and the instances on it. Its address is also that
    of the external machine or the whole host."""

    network_index: int
    charged: bool
    charged_from: datetime | None
    charged_until: datetime | None
    volumes: tuple[AllocationVolume, ...]
    instance_ids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TimelineEntryRecord(Record):
    at: datetime
    duration_seconds: float | None
    """Until the next entry; None for the last one."""
    step: str
    message: str
    correlation_id: str


@dataclass(frozen=True, slots=True)
class UsageView(Record):
    """One interval of usage, with the name of its allocation."""

    id: str
    kind: UsageKind
    tenant_id: str
    project_id: str | None
    allocation_id: str
    allocation_name: str
    started_at: datetime
    ended_at: datetime | None
    seconds: float
    """Until now, where it has not ended."""
    shapes: tuple[UsedShape, ...]


@dataclass(frozen=True, slots=True)
class AllocationFilter:
    status: str | None = None
    name: str | None = None
    node_id: str | None = None
