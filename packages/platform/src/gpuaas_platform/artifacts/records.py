"""Artifacts and trusted keys as the database has them. Each belongs to an app or to a project."""

from dataclasses import dataclass
from datetime import datetime

from gpuaas_contract.artifacts import ArtifactStatus, KeyAlgorithm
from gpuaas_platform.core.records import Record


@dataclass(frozen=True, slots=True)
class ArtifactRecord(Record):
    """An artifact by itself, as every change of it returns it."""

    id: str
    app_slug: str | None
    project_id: str | None
    name: str
    repository: str
    digest: str
    """Of the manifest."""
    status: ArtifactStatus
    artifact_type: str
    media_type: str
    content_digest: str
    """Of the file itself."""
    size: int
    file_name: str | None
    trusted_key_id: str | None
    """The key that its signature was verified with."""
    revision: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class ArtifactView(ArtifactRecord):
    """An artifact with the tenant of its project."""

    tenant_id: str | None


@dataclass(frozen=True, slots=True)
class TrustedKeyRecord(Record):
    """A trusted key by itself, as every change of it returns it."""

    id: str
    app_slug: str | None
    project_id: str | None
    name: str
    algorithm: KeyAlgorithm
    fingerprint: str
    public_key_pem: str
    revision: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class TrustedKeyView(TrustedKeyRecord):
    """A trusted key with the tenant of its project."""

    tenant_id: str | None
