"""Run-time secrets and their deliveries as the database has them. Their values are not here."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from gpuaas_contract.credentials import VersionState
from gpuaas_contract.secrets import SecretSpec
from gpuaas_platform.core.records import Record


@dataclass(frozen=True, slots=True)
class SecretRecord(Record):
    """A secret by itself, as every change of it returns it."""

    id: str
    project_id: str
    instance_id: str
    name: str
    spec: SecretSpec
    revision: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class SecretView(SecretRecord):
    """A secret with its tenant, its app, and who may read it."""

    tenant_id: str
    app_slug: str
    readable_by: list[str]


class DeliveryState(StrEnum):
    WRAPPING = "wrapping"
    """Its token is being made."""
    READY = "ready"
    USED = "used"
    VOID = "void"
    """Given up, or replaced by a later delivery to the same lease."""


@dataclass(frozen=True, slots=True)
class SecretDeliveryRecord(Record):
    """A delivery by itself, as every change of it returns it."""

    id: str
    owner_id: str
    """The credential or the secret."""
    version: int
    operation_id: str
    fencing_token: int
    """Of the lease that it was made for."""
    state: DeliveryState
    token_hash: str | None
    expires_at: datetime | None
    """None until its token is made."""


@dataclass(frozen=True, slots=True)
class SecretDeliveryView(SecretDeliveryRecord):
    """A delivery with the owner of its operation, and the state of the version that it delivers."""

    expired: bool | None
    version_state: VersionState
    project_id: str
    app_slug: str
    tenant_id: str
