"""Tenants, projects, people and service accounts."""

from pydantic import SecretStr

from gpuaas_contract.identity import (
    Membership,
    MembershipCreate,
    Project,
    ProjectCreate,
    ProjectPage,
    Role,
    ServiceAccount,
    ServiceAccountCreate,
    ServiceAccountPage,
    Tenant,
    TenantCreate,
    TenantPage,
    User,
    UserCreate,
    UserPage,
)
from gpuaas_sdk.pages import Pager
from gpuaas_sdk.resources.base import ResourceRoutes


class Tenants(ResourceRoutes):
    async def create(self, name: str, *, title: str | None = None, idempotency_key: str | None = None) -> Tenant:
        body = TenantCreate(name=name, title=title)
        return await self._transport.post("/tenants", Tenant, body, idempotency_key=idempotency_key)

    def list(self, *, limit: int | None = None) -> Pager[Tenant]:
        return self._list("/tenants", TenantPage, limit=limit)

    async def get(self, tenant_id: str) -> Tenant:
        return await self._transport.get(f"/tenants/{tenant_id}", Tenant)


class Projects(ResourceRoutes):
    async def create(
        self, tenant_id: str, name: str, *, title: str | None = None, idempotency_key: str | None = None
    ) -> Project:
        body = ProjectCreate(tenant_id=tenant_id, name=name, title=title)
        return await self._transport.post("/projects", Project, body, idempotency_key=idempotency_key)

    def list(self, *, tenant_id: str | None = None, limit: int | None = None) -> Pager[Project]:
        return self._list("/projects", ProjectPage, {"tenant_id": tenant_id}, limit=limit)

    async def get(self, project_id: str) -> Project:
        return await self._transport.get(f"/projects/{project_id}", Project)


class Users(ResourceRoutes):
    async def create(self, email: str, password: str, *, idempotency_key: str | None = None) -> User:
        body = UserCreate(email=email, password=SecretStr(password))
        return await self._transport.post("/users", User, body, idempotency_key=idempotency_key)

    def list(self, *, limit: int | None = None) -> Pager[User]:
        return self._list("/users", UserPage, limit=limit)


class Memberships(ResourceRoutes):
    async def create(
        self,
        user_id: str,
        role: Role,
        *,
        tenant_id: str | None = None,
        project_id: str | None = None,
        idempotency_key: str | None = None,
    ) -> Membership:
        body = MembershipCreate(user_id=user_id, role=role, tenant_id=tenant_id, project_id=project_id)
        return await self._transport.post("/memberships", Membership, body, idempotency_key=idempotency_key)


class ServiceAccounts(ResourceRoutes):
    async def create(
        self,
        project_id: str,
        name: str,
        public_key_pem: str,
        *,
        app_slug: str | None = None,
        idempotency_key: str | None = None,
    ) -> ServiceAccount:
        body = ServiceAccountCreate(project_id=project_id, name=name, app_slug=app_slug, public_key_pem=public_key_pem)
        return await self._transport.post("/service-accounts", ServiceAccount, body, idempotency_key=idempotency_key)

    def list(self, *, project_id: str | None = None, limit: int | None = None) -> Pager[ServiceAccount]:
        return self._list("/service-accounts", ServiceAccountPage, {"project_id": project_id}, limit=limit)
