"""Volumes: disks of a project that outlive its machines, each on one node, attached to any number of machines there."""

from enum import StrEnum
from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from gpuaas_contract.base import Message, Name, OwnedResource, Page, Request, Resource
from gpuaas_contract.problems import AllowedAction

_PART = r"/[A-Za-z0-9_][A-Za-z0-9._-]{0,63}"
# A machine would not be one any more with something else there, or below.
_SYSTEM = ("bin", "boot", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "run", "sbin", "sys", "usr")
_OURS = ("opt/gpuaas", "var/lock", "var/run")
# Here something else may well be below, only not in the place of all of it.
_WHOLE = ("opt", "root", "tmp", "var", "var/cache", "var/lib", "var/log", "var/tmp")


def _check_path(path: str) -> str:
    inside = path.removeprefix("/")
    if inside in _WHOLE or any(inside == top or inside.startswith(f"{top}/") for top in (*_SYSTEM, *_OURS)):
        raise ValueError(f"{path} belongs to the system of the machine")
    return path


MountPath = Annotated[str, StringConstraints(pattern=rf"^({_PART}){{1,8}}$"), AfterValidator(_check_path)]
"""Where a machine sees a volume: absolute and plain, no `..`, no system directory, for example `/home`."""


class VolumeStatus(StrEnum):
    UNPLACED = "unplaced"
    """Has no node yet; its first machine decides."""
    PLACED = "placed"
    """Its room on a node is taken; it is made there with its first machine."""
    READY = "ready"
    DELETING = "deleting"
    DELETED = "deleted"
    DELETE_FAILED = "delete_failed"
    LOST = "lost"
    """Its node came back without it."""


class AttachmentStatus(StrEnum):
    WAITING = "waiting"
    """For the machine to be made."""
    ATTACHING = "attaching"
    ATTACHED = "attached"
    ATTACH_FAILED = "attach_failed"
    DETACHING = "detaching"
    DETACH_FAILED = "detach_failed"


class VolumeCreate(Request):
    project_id: str
    name: Name
    size_gib: int = Field(ge=1, le=65_536)


class VolumeAttach(Request):
    allocation_id: str
    path: MountPath


class VolumeDetach(Request):
    allocation_id: str


class VolumeAt(Request):
    """A volume that a machine has from its start."""

    volume_id: str
    path: MountPath


class Attachment(Resource):
    allocation_id: str
    allocation_name: str
    path: str
    status: AttachmentStatus
    reason: Message = ""
    """Why it waits or failed, in plain words."""


class AllocationVolume(Resource):
    """The same, as the machine sees it."""

    volume_id: str
    name: str
    path: str
    status: AttachmentStatus
    reason: Message = ""


class Volume(OwnedResource):
    project_id: str
    name: str
    size_gib: int
    status: VolumeStatus
    reason: Message = ""
    """The reason of a failure, in plain words; empty otherwise."""
    node_id: str | None = None
    attachments: list[Attachment] = []
    allowed_actions: list[AllowedAction] = []


class VolumePage(Page):
    items: list[Volume]
