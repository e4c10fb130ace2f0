"""Artifacts: files that apps bring to machines, by content."""

from enum import StrEnum

from gpuaas_contract.base import Digest, OwnedResource, Page, Request, Resource


class Artifact(OwnedResource):
    app_slug: str
    digest: str
    size: int
    media_type: str


class ArtifactPage(Page):
    items: list[Artifact]


class DeliveryStatus(StrEnum):
    PENDING = "pending"
    DELIVERED = "delivered"
    FAILED = "failed"


class DeliveryRequest(Request):
    """Bring an artifact of the operation's app to one machine of the operation."""

    fencing_token: int
    allocation_id: str
    digest: Digest


class Delivery(Resource):
    id: str
    allocation_id: str
    digest: str
    status: DeliveryStatus
    path: str | None = None
    """Where the file is on the machine, once delivered; read-only."""
    reason: str = ""
