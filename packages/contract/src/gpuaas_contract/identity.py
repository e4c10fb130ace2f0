"""Tenants, projects, people and service accounts."""

from enum import StrEnum
from typing import Annotated, ClassVar, Self

from pydantic import AwareDatetime, Field, SecretStr, StringConstraints, model_validator

from gpuaas_contract.base import Name, OwnedResource, Page, Request, Resource, Title
from gpuaas_contract.passwords import NewPassword


class Role(StrEnum):
    PLATFORM_ADMIN = "platform_admin"
    APP_PUBLISHER = "app_publisher"
    TENANT_ADMIN = "tenant_admin"
    PROJECT_ADMIN = "project_admin"
    PROJECT_MEMBER = "project_member"
    PROJECT_VIEWER = "project_viewer"


class PrincipalKind(StrEnum):
    USER = "user"
    SERVICE_ACCOUNT = "service_account"
    NODE = "node"


class LoginRequest(Request):
    email: str = Field(max_length=254)
    password: SecretStr = Field(max_length=1024)
    renewable: bool | None = None
    """Ask for a refresh token as well, for a login that outlives its first token. Browser sessions ignore it."""


class Token(Resource):
    """The answer of both token routes, in OAuth 2 words."""

    access_token: str
    token_type: str = "Bearer"  # noqa: S105 - the name of the scheme
    expires_in: int
    refresh_token: str | None = None
    """Only for logins that outlive a token: the device flow, and a password login that asked for it. Each works once;
    the answer holds the next one."""


class TenantCreate(Request):
    name: Name
    title: Title | None = None


class TenantUpdate(Request):
    title: Title


class Tenant(OwnedResource):
    name: str
    title: str


class TenantPage(Page):
    items: list[Tenant]


class ProjectCreate(Request):
    tenant_id: str
    name: Name
    title: Title | None = None


class ProjectUpdate(Request):
    title: Title


class Project(OwnedResource):
    tenant_id: str
    name: str
    title: str


class ProjectPage(Page):
    items: list[Project]


class UserCreate(Request):
    email: str = Field(max_length=254, pattern=r"^[^@\s\x00]+@[^@\s\x00]+$")
    password: NewPassword
    password_change_required: bool = False
    """The password is good for one login: the user must choose another one before anything else."""


class UserUpdate(Request):
    """An administrator's update of another user. Omitted fields stay unchanged."""

    disabled: bool | None = None
    password: NewPassword | None = None
    """A new one-time password, for somebody who forgot theirs."""


class User(OwnedResource):
    email: str
    disabled: bool = False
    password_change_required: bool = False


class UserPage(Page):
    items: list[User]


class MembershipCreate(Request):
    """Give a user a role: in a tenant, in a project, for an app (a publisher), or on the platform."""

    user_id: str
    role: Role
    tenant_id: str | None = None
    project_id: str | None = None
    app_slug: Name | None = None
    """The app whose versions an app_publisher publishes; it need not exist yet."""


class Membership(OwnedResource):
    user_id: str
    user_email: str | None = None
    """Shown in lists, where the reader may not be allowed to look users up."""
    role: Role
    tenant_id: str | None = None
    project_id: str | None = None
    app_slug: str | None = None


class MembershipPage(Page):
    items: list[Membership]


PublicKeyPem = Annotated[str, StringConstraints(max_length=2_000)]
Kid = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._:-]{1,64}$")]


class ServiceAccountCreate(Request):
    """An account of a project or of a whole tenant (exactly one of the two).

    The caller makes the ed25519 key pair; the platform only ever sees the public half. Without a key the
    account cannot log in until a key or a secret is added."""

    project_id: str | None = None
    tenant_id: str | None = None
    name: Name
    app_slug: Name | None = None
    """Set for a controller: the account may claim the operations of this app's instances, and only those."""
    role: Role | None = None
    """For automation: a project role; a tenant's account may also be tenant_admin. A viewer where nothing is said."""
    public_key_pem: PublicKeyPem | None = None

    @model_validator(mode="after")
    def _one_scope(self) -> Self:
        if (self.project_id is None) == (self.tenant_id is None):
            raise ValueError("give exactly one of project_id and tenant_id")
        return self


class ServiceAccountUpdate(Request):
    disabled: bool


class ServiceAccount(OwnedResource):
    project_id: str | None = None
    tenant_id: str | None = None
    name: str
    app_slug: str | None = None
    role: Role | None = None
    disabled: bool = False


class ServiceAccountKeyKind(StrEnum):
    PUBLIC_KEY = "public_key"
    """An ed25519 key whose private half signs assertions (private-key JWT)."""
    SECRET = "secret"  # noqa: S105 - the name of a kind


VALID_KEYS_PER_KIND = 2
"""Two, so that the next one can be brought out before the last one is revoked."""


class ServiceAccountKeyAdd(Request):
    public_key_pem: PublicKeyPem
    kid: Kid | None = None
    """A further name for the key in the `kid` header of assertions. The key's id always works there."""


class ServiceAccountKey(OwnedResource):
    """A way for the account to log in: a public key, or a secret that was shown once."""

    ONE_TIME: ClassVar[frozenset[str]] = frozenset({"secret"})

    service_account_id: str
    kind: ServiceAccountKeyKind
    kid: str | None = None
    public_key_pem: str | None = None
    secret: str | None = None
    """Only in the first answer to the request that made it."""
    last_used_at: AwareDatetime | None = None


class ServiceAccountKeyPage(Page):
    items: list[ServiceAccountKey]


class ServiceAccountPage(Page):
    items: list[ServiceAccount]


class Principal(Resource):
    """Who the caller is (`GET /v1/principal`)."""

    kind: PrincipalKind
    id: str
    name: str
    memberships: list[Membership] = []
    tenant_id: str | None = None
    project_id: str | None = None
    role: Role | None = None
    """Of a service account; a user's roles are its memberships."""
    app_slug: str | None = None
    token_expires_at: AwareDatetime
