"""Tenants, projects, people and service accounts."""

from enum import StrEnum

from pydantic import AwareDatetime, Field, SecretStr

from gpuaas_contract.base import Name, OwnedResource, Page, Request, Resource, Title


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


class Token(Resource):
    """The answer of both token routes, in OAuth 2 words."""

    access_token: str
    token_type: str = "Bearer"  # noqa: S105 - the name of the scheme
    expires_in: int


class TenantCreate(Request):
    name: Name
    title: Title | None = None


class Tenant(OwnedResource):
    name: str
    title: str


class TenantPage(Page):
    items: list[Tenant]


class ProjectCreate(Request):
    tenant_id: str
    name: Name
    title: Title | None = None


class Project(OwnedResource):
    tenant_id: str
    name: str
    title: str


class ProjectPage(Page):
    items: list[Project]


class UserCreate(Request):
    email: str = Field(max_length=254, pattern=r"^[^@\s\x00]+@[^@\s\x00]+$")
    password: SecretStr = Field(min_length=12, max_length=1024)


class User(OwnedResource):
    email: str


class UserPage(Page):
    items: list[User]


class MembershipCreate(Request):
    """Give a user a role in a tenant or in a project (exactly one of the two)."""

    user_id: str
    role: Role
    tenant_id: str | None = None
    project_id: str | None = None


class Membership(OwnedResource):
    user_id: str
    role: Role
    tenant_id: str | None = None
    project_id: str | None = None


class ServiceAccountCreate(Request):
    """The caller makes the ed25519 key pair; the platform only ever sees the public half."""

    project_id: str
    name: Name
    app_slug: Name | None = None
    """Set for a controller: the account may claim the operations of this app's instances, and only those."""
    public_key_pem: str = Field(max_length=2_000)


class ServiceAccount(OwnedResource):
    project_id: str
    name: str
    app_slug: str | None = None


class ServiceAccountPage(Page):
    items: list[ServiceAccount]


class Principal(Resource):
    """Who the caller is (`GET /v1/principal`)."""

    kind: PrincipalKind
    id: str
    name: str
    memberships: list[Membership] = []
    project_id: str | None = None
    app_slug: str | None = None
    token_expires_at: AwareDatetime
