"""App versions, entitlements and deliveries of artifacts as the database has them."""

from dataclasses import dataclass
from datetime import datetime

from gpuaas_contract.artifacts import DeliveryStatus
from gpuaas_contract.base import JsonObject
from gpuaas_contract.catalogue import AppVersionStatus
from gpuaas_contract.manifest import RuntimeLabel
from gpuaas_platform.core.records import Record


@dataclass(frozen=True, slots=True)
class AppVersionRecord(Record):
    id: str
    app_slug: str
    version: str
    status: AppVersionStatus
    reason: str
    """Why it was deprecated or retired."""
    manifest: JsonObject
    """As it was published: whoever needs the model has it read once, by `manifest_of_version`."""
    revision: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class AppVersionSummary(Record):
    """A version without its manifest."""

    id: str
    app_slug: str
    version: str
    status: AppVersionStatus
    reason: str
    runtime: RuntimeLabel
    revision: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class AppView(Record):
    """An app with the version that a deploy would take."""

    id: str
    """Its slug."""
    version: str
    status: AppVersionStatus
    manifest: JsonObject
    created_at: datetime
    """Of that version."""


@dataclass(frozen=True, slots=True)
class EntitlementRecord(Record):
    """A tenant may deploy an app."""

    id: str
    tenant_id: str
    app_slug: str
    revision: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class DeliveryRecord(Record):
    """An artifact that is brought to a machine for an operation."""

    id: str
    operation_id: str
    allocation_id: str
    digest: str
    status: DeliveryStatus
    path: str | None
    """Where the file is on the machine, once delivered."""
    reason: str


@dataclass(frozen=True, slots=True)
class DeliveryChange(DeliveryRecord):
    """A delivery after one of the two changes of its life."""

    revision: int
    """1 when it was requested, 2 when it ended."""


@dataclass(frozen=True, slots=True)
class DeliveryView(DeliveryRecord):
    """A delivery with the scope of its operation."""

    tenant_id: str
    project_id: str
    app_slug: str
