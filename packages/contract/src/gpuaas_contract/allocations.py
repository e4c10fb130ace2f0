"""Allocations: machines that a project has, or a tenant for what its projects share."""

from enum import StrEnum
from typing import Self

from pydantic import AwareDatetime, Field, model_validator

from gpuaas_contract.base import Image, Message, Name, OwnedResource, Page, Request, Resource
from gpuaas_contract.external import ExternalMachine
from gpuaas_contract.problems import AllowedAction
from gpuaas_contract.volumes import AllocationVolume, VolumeAt


class AllocationStatus(StrEnum):
    REQUESTED = "requested"
    PROVISIONING = "provisioning"
    ACTIVE = "active"
    RELEASING = "releasing"
    RELEASED = "released"
    FAILED = "failed"
    RELEASE_FAILED = "release_failed"


class Activity(StrEnum):
    """The work in progress on an active machine."""

    ASKING = "asking"
    """The apps on the machine are asked whether it may be resized."""
    RESTARTING = "restarting"
    RESIZING = "resizing"


class ShapeKind(StrEnum):
    SLICE = "slice"
    """A part of a host."""
    HOST = "host"
    """A whole host as it is; the sizes are the least that it must have, and then what it really has."""
    EXTERNAL = "external"
    """A machine without an agent; the sizes are what its owner states."""


class Shape(Resource):
    kind: ShapeKind = ShapeKind.SLICE
    cpus: int = Field(default=1, ge=1, le=1024)
    memory_mib: int = Field(default=2048, ge=256, le=8_388_608)
    disk_gib: int = Field(default=8, ge=2, le=65_536)
    gpus: int = Field(default=0, ge=0, le=64)
    external: ExternalMachine | None = None
    """Where an external machine is and how it is opened; only for that kind."""

    @model_validator(mode="after")
    def _check_external(self) -> Self:
        if (self.external is not None) != (self.kind == ShapeKind.EXTERNAL):
            raise ValueError("`external` belongs to a shape of the kind external, and that kind needs it")
        return self


class AllocationCreate(Request):
    """A machine of a project, or of a tenant itself (exactly one of the two)."""

    project_id: str | None = None
    tenant_id: str | None = None
    name: Name
    shape: Shape = Shape()
    image: Image | None = None
    """The image of the machine; by default, the default image of its node."""
    volumes: list[VolumeAt] = Field(default=[], max_length=16)
    """It is made on the node where these are, and has them from its start. Only machines of a project have volumes."""

    @model_validator(mode="after")
    def _one_owner(self) -> Self:
        if (self.project_id is None) == (self.tenant_id is None):
            raise ValueError("give exactly one of project_id and tenant_id")
        return self


MOST_AT_ONCE = 64


class AllocationBatchCreate(AllocationCreate):
    """Several alike, named `<name>-1`, `<name>-2` and so on: all of them are accepted, or none is."""

    count: int = Field(ge=1, le=MOST_AT_ONCE)


class AllocationUpdate(Request):
    name: Name
    """The display name; the host name of the machine never changes."""


class AllocationRestart(Request):
    force: bool = False
    """Restart even if an app is on the machine: its daemons go down with it."""


class AllocationResize(Request):
    """The new size; omitted fields stay unchanged. A disk only grows."""

    cpus: int | None = Field(default=None, ge=1, le=1024)
    memory_mib: int | None = Field(default=None, ge=256, le=8_388_608)
    disk_gib: int | None = Field(default=None, ge=2, le=65_536)
    gpus: int | None = Field(default=None, ge=0, le=64)
    force: bool = False
    """Resize without asking the apps on the machine."""


class AllocationRelease(Request):
    force: bool = False
    """Release even if an app uses the machine: its member stays, to be removed or written off."""
    delete_volumes: bool = False
    """Also delete the volumes that only this machine has attached, and their data."""


class TimelineEntry(Resource):
    at: AwareDatetime
    duration_seconds: float | None = None
    """Until the next entry; none for the last one."""
    step: str
    message: str
    correlation_id: str


class Allocation(OwnedResource):
    tenant_id: str
    project_id: str | None = None
    """None for one that is the tenant's own."""
    name: str
    shape: Shape
    image: str | None = None
    """The image of the machine; none until it has a node, where the request named no image."""
    status: AllocationStatus
    reason: Message = ""
    """Why it waits or failed, in plain words; empty when all is well."""
    activity: Activity | None = None
    """The work in progress; none when nothing is being done."""
    wanted_shape: Shape | None = None
    """The size that it is being given."""
    asked_operation_ids: list[str] = []
    """While it is `asking`: the operations in which the apps answer."""
    charged: bool = False
    """Whether it is being charged now. One that failed, or whose release was accepted, is not."""
    charged_from: AwareDatetime | None = None
    charged_until: AwareDatetime | None = None
    """It is charged between these two; from the moment that a release is accepted it is not charged any more."""
    allowed_actions: list[AllowedAction] = []
    node_id: str | None = None
    hostname: str | None = None
    address: str | None = None
    network_id: str | None = None
    network_policy_id: str | None = None
    project_network_id: str | None = None
    volumes: list[AllocationVolume] = []
    instance_ids: list[str] = []
    """App instances with a live member on this machine."""
    correlation_id: str


class AllocationPage(Page):
    items: list[Allocation]


class AllocationBatch(Resource):
    items: list[Allocation]


class Timeline(Resource):
    items: list[TimelineEntry]
