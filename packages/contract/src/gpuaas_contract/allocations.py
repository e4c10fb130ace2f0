"""Allocations: machines that a project has."""

from enum import StrEnum

from pydantic import AwareDatetime, Field

from gpuaas_contract.base import Message, Name, OwnedResource, Page, Request, Resource


class AllocationStatus(StrEnum):
    REQUESTED = "requested"
    PROVISIONING = "provisioning"
    ACTIVE = "active"
    RELEASING = "releasing"
    RELEASED = "released"
    FAILED = "failed"
    RELEASE_FAILED = "release_failed"


class ShapeKind(StrEnum):
    SLICE = "slice"


class Shape(Resource):
    kind: ShapeKind = ShapeKind.SLICE
    cpus: int = Field(default=1, ge=1, le=1024)
    memory_mib: int = Field(default=2048, ge=256, le=8_388_608)
    disk_gib: int = Field(default=8, ge=2, le=65_536)
    gpus: int = Field(default=0, ge=0, le=64)


class AllocationCreate(Request):
    project_id: str
    name: Name
    shape: Shape = Shape()


class TimelineEntry(Resource):
    at: AwareDatetime
    step: str
    message: str
    correlation_id: str


class Allocation(OwnedResource):
    project_id: str
    name: str
    shape: Shape
    status: AllocationStatus
    reason: Message = ""
    """Why it waits or failed, in plain words; empty when all is well."""
    node_id: str | None = None
    hostname: str | None = None
    address: str | None = None
    network_id: str | None = None
    network_policy_id: str | None = None
    project_network_id: str | None = None
    instance_ids: list[str] = []
    """App instances with a live member on this machine."""
    correlation_id: str


class AllocationPage(Page):
    items: list[Allocation]


class Timeline(Resource):
    items: list[TimelineEntry]
