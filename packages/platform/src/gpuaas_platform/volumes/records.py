"""Volumes as the database has them."""

from dataclasses import dataclass
from datetime import datetime

from gpuaas_contract.volumes import Attachment, AttachmentStatus, VolumeStatus
from gpuaas_platform.core.records import Record


@dataclass(frozen=True, slots=True)
class VolumeRecord(Record):
    """A volume by itself, as every change of it returns it."""

    id: str
    project_id: str
    name: str
    size_gib: int
    status: VolumeStatus
    reason: str
    node_id: str | None
    """Where it is; None until it got its place with its first machine."""
    revision: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class VolumeView(VolumeRecord):
    """A volume with its tenant, its node's name and the machines that it is attached to."""

    tenant_id: str
    node_name: str | None
    attachments: tuple[Attachment, ...]

    def attachment_to(self, allocation_id: str) -> Attachment | None:
        return next((item for item in self.attachments if item.allocation_id == allocation_id), None)


@dataclass(frozen=True, slots=True)
class AttachedVolume(VolumeRecord):
    """A volume as one of its machines has it."""

    node_name: str | None
    path: str
    attachment_status: AttachmentStatus
    delete_volume: bool
    """Whether it goes with this machine, if no other has it then."""
    machines: int
    """How many machines it is attached to."""
