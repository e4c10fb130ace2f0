"""Users, memberships, service accounts, logins and SSH keys as the database has them."""

from dataclasses import dataclass, field
from datetime import datetime

from gpuaas_contract.identity import Role, ServiceAccountKeyKind
from gpuaas_contract.sessions import SessionKind
from gpuaas_platform.core.records import Record


@dataclass(frozen=True, slots=True)
class UserRecord(Record):
    id: str
    email: str
    password_hash: str
    epoch: int
    """Grows when all logins of the user are withdrawn: a token names the epoch that it was made in."""
    disabled: bool
    password_change_required: bool
    revision: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class MembershipRecord(Record):
    """A role of a user: in a tenant, in a project, for an app, or on the platform."""

    id: str
    user_id: str
    role: Role
    tenant_id: str | None
    project_id: str | None
    app_slug: str | None
    revision: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class MembershipView(MembershipRecord):
    """A membership with the e-mail of its user."""

    user_email: str


@dataclass(frozen=True, slots=True)
class ScopedMembership(MembershipView):
    """A membership with the tenant that it is in, directly or through its project."""

    scope_tenant_id: str | None
    """None for a role on the platform or for an app."""


@dataclass(frozen=True, slots=True)
class ServiceAccountRecord(Record):
    """An account of a project or of a whole tenant."""

    id: str
    project_id: str | None
    tenant_id: str | None
    name: str
    app_slug: str | None
    role: Role | None
    epoch: int
    """Grows when all tokens of the account are withdrawn."""
    disabled: bool
    revision: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class ServiceAccountView(ServiceAccountRecord):
    """A service account with the tenant that it is in, directly or through its project."""

    scope_tenant_id: str


@dataclass(frozen=True, slots=True)
class ServiceAccountKeyRecord(Record):
    """A public key, or the hash of a secret."""

    id: str
    service_account_id: str
    kind: ServiceAccountKeyKind
    kid: str | None
    public_key_pem: str | None
    secret_hash: str | None
    last_used_at: datetime | None
    revision: int
    created_at: datetime
    updated_at: datetime


@dataclass(frozen=True, slots=True)
class NewSession:
    """A login that is about to be opened."""

    id: str
    user_id: str
    epoch: int
    kind: SessionKind
    client: str
    idle_seconds: int
    """It is over when it was not used for so long."""
    most_seconds: int
    """It is over after so long in any case."""
    secret_hash: str | None
    """Of the cookie's secret, for a browser."""


@dataclass(frozen=True, slots=True)
class SessionRecord(Record):
    """One login of a person."""

    id: str
    user_id: str
    kind: SessionKind
    client: str
    created_at: datetime
    last_used_at: datetime
    expires_at: datetime
    revision: int = field(default=1, kw_only=True)
    """No column: a login never changes, so that there is only ever one revision of it."""


@dataclass(frozen=True, slots=True)
class SessionView(SessionRecord):
    """A login with what its user is shown about themselves."""

    email: str
    password_change_required: bool


@dataclass(frozen=True, slots=True)
class SshKeyRecord(Record):
    """A person's own SSH public key."""

    id: str
    user_id: str
    name: str
    key_type: str
    bits: int
    public_key: str
    fingerprint: str
    revision: int
    created_at: datetime
    updated_at: datetime
