"""Tenants, projects, quotas, principals and OAuth grants as the database has them."""

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from gpuaas_platform.core.records import Record


@dataclass(frozen=True, slots=True)
class TenantRecord(Record):
    id: str
    name: str
    title: str
    revision: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class ProjectRecord(Record):
    id: str
    tenant_id: str
    name: str
    title: str
    revision: int
    created_at: datetime
    updated_at: datetime


# Quotas


@dataclass(frozen=True, slots=True)
class QuotaRecord(Record):
    """The limits of a project; None is no limit."""

    id: str
    """That of the project."""
    cpus: int | None
    memory_mib: int | None
    disk_gib: int | None
    gpus: int | None
    allocations: int | None
    revision: int

    @classmethod
    def unlimited(cls, project_id: str) -> "QuotaRecord":
        """Stand in for the quota of a project for which nobody has set one."""
        return cls(project_id, cpus=None, memory_mib=None, disk_gib=None, gpus=None, allocations=None, revision=0)


@dataclass(frozen=True, slots=True)
class ProjectUse(Record):
    """The sums that count against the quota of a project."""

    cpus: int
    memory_mib: int
    disk_gib: int
    gpus: int
    allocations: int


# Principals


@dataclass(frozen=True, slots=True)
class HeldRole(Record):
    """A membership as far as it decides about permissions."""

    role: str
    """As it is stored: one that a newer version of the platform knows gives nothing here."""
    tenant_id: str | None
    project_id: str | None
    app_slug: str | None
    seen_tenant_id: str | None
    """The tenant that it makes visible: its own, or that of its project."""


@dataclass(frozen=True, slots=True)
class UserPrincipal(Record):
    """A person who calls, with the login that they show."""

    id: str
    email: str
    epoch: int
    disabled: bool
    password_change_required: bool
    live: bool
    """Whether the login is not over and nobody has withdrawn it."""
    memberships: tuple[HeldRole, ...]


@dataclass(frozen=True, slots=True)
class TokenUser(UserPrincipal):
    """The user whom a token names."""

    session_id: str | None
    """None where the login is gone."""


@dataclass(frozen=True, slots=True)
class CookieUser(UserPrincipal):
    """The user of a browser's cookie."""

    session_id: str
    expires_at: datetime
    stale: bool
    """Whether it was last noted as used more than a minute ago."""


@dataclass(frozen=True, slots=True)
class ServiceAccountPrincipal(Record):
    """A service account that calls."""

    id: str
    name: str
    project_id: str | None
    tenant_id: str | None
    role: str | None
    app_slug: str | None
    epoch: int
    disabled: bool
    seen_tenant_id: str
    """Its tenant, or that of its project."""


@dataclass(frozen=True, slots=True)
class ControllerPresence(Record):
    """The account of an app that was heard of last."""

    name: str
    seen_at: datetime | None
    connected: bool
    """Whether that was lately."""


@dataclass(frozen=True, slots=True)
class OperatorRecord(Record):
    """A service account that somebody named as the operator of an instance, as it is now."""

    name: str
    app_slug: str | None
    disabled: bool
    usable: bool
    """It belongs to the instance's project, or to its tenant."""
    seen_at: datetime | None
    connected: bool


# OAuth


class DeviceStatus(StrEnum):
    PENDING = "pending"
    APPROVED = "approved"
    DENIED = "denied"


@dataclass(frozen=True, slots=True)
class DeviceAuthorizationRecord(Record):
    """A command line that waits for a person's approval."""

    id: str
    user_code: str
    client_id: str
    address: str
    """From which the program asked; empty where it was not noted."""
    status: DeviceStatus
    revision: int
    created_at: datetime
    expires_at: datetime
    expired: bool
    used_at: datetime | None
    """When its command line was let in."""
    user_id: str | None
    """Who decided; None while nobody has."""


@dataclass(frozen=True, slots=True)
class PolledDevice(Record):
    """A device authorization as its command line finds it."""

    id: str
    client_id: str
    status: DeviceStatus
    poll_seconds: int
    expired: bool
    too_soon: bool
    """Whether it was asked about again before `poll_seconds` were over."""
    user_id: str | None
    """Who decided; None while nobody has."""
    epoch: int | None
    """Of that user."""
    user_gone: bool
    """Whether there is no such user, only a disabled one, or one whose logins were ended after the approval."""


@dataclass(frozen=True, slots=True)
class RefreshTokenView(Record):
    """A refresh token with its login."""

    used_seconds_ago: float | None
    """None where it was not used yet."""
    session_id: str
    client: str
    user_id: str
    epoch: int
    """Of the user."""
    live: bool
    """Whether the login is not over and nobody has withdrawn it."""
