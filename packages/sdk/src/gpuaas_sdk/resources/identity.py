"""Tenants, projects, people and service accounts."""

from collections.abc import Sequence

from pydantic import SecretStr

from gpuaas_contract.identity import (
    Membership,
    MembershipCreate,
    MembershipPage,
    Project,
    ProjectCreate,
    ProjectPage,
    ProjectUpdate,
    Role,
    ServiceAccount,
    ServiceAccountCreate,
    ServiceAccountKey,
    ServiceAccountKeyAdd,
    ServiceAccountKeyPage,
    ServiceAccountPage,
    ServiceAccountUpdate,
    Tenant,
    TenantCreate,
    TenantPage,
    TenantUpdate,
    User,
    UserCreate,
    UserPage,
    UserUpdate,
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

    async def update(self, tenant_id: str, *, title: str, revision: int | None = None) -> Tenant:
        return await self._transport.patch(
            f"/tenants/{tenant_id}", Tenant, TenantUpdate(title=title), revision=revision
        )

    async def delete(self, tenant_id: str, *, revision: int | None = None) -> Tenant:
        return await self._transport.delete(f"/tenants/{tenant_id}", Tenant, revision=revision)


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

    async def update(self, project_id: str, *, title: str, revision: int | None = None) -> Project:
        return await self._transport.patch(
            f"/projects/{project_id}", Project, ProjectUpdate(title=title), revision=revision
        )

    async def delete(self, project_id: str, *, revision: int | None = None) -> Project:
        return await self._transport.delete(f"/projects/{project_id}", Project, revision=revision)


class Users(ResourceRoutes):
    async def create(
        self,
        email: str,
        password: str,
        *,
        password_change_required: bool = False,
        idempotency_key: str | None = None,
    ) -> User:
        body = UserCreate(email=email, password=SecretStr(password), password_change_required=password_change_required)
        return await self._transport.post("/users", User, body, idempotency_key=idempotency_key)

    def list(self, *, limit: int | None = None) -> Pager[User]:
        return self._list("/users", UserPage, limit=limit)

    async def get(self, user_id: str) -> User:
        return await self._transport.get(f"/users/{user_id}", User)

    async def update(
        self,
        user_id: str,
        *,
        disabled: bool | None = None,
        password: str | None = None,
        revision: int | None = None,
    ) -> User:
        """Update a user. A password that is given here is valid for one login; every login of the user ends."""
        body = UserUpdate(disabled=disabled, password=None if password is None else SecretStr(password))
        return await self._transport.patch(f"/users/{user_id}", User, body, revision=revision)

    async def delete(self, user_id: str, *, revision: int | None = None) -> User:
        return await self._transport.delete(f"/users/{user_id}", User, revision=revision)


class Memberships(ResourceRoutes):
    async def create(
        self,
        user_id: str,
        role: Role,
        *,
        tenant_id: str | None = None,
        project_id: str | None = None,
        app_slug: str | None = None,
        idempotency_key: str | None = None,
    ) -> Membership:
        body = MembershipCreate(
            user_id=user_id, role=role, tenant_id=tenant_id, project_id=project_id, app_slug=app_slug
        )
        return await self._transport.post("/memberships", Membership, body, idempotency_key=idempotency_key)

    def list(
        self,
        *,
        user_id: str | None = None,
        tenant_id: str | None = None,
        project_id: str | None = None,
        limit: int | None = None,
    ) -> Pager[Membership]:
        query = {"user_id": user_id, "tenant_id": tenant_id, "project_id": project_id}
        return self._list("/memberships", MembershipPage, query, limit=limit)

    async def delete(self, membership_id: str, *, revision: int | None = None) -> Membership:
        return await self._transport.delete(f"/memberships/{membership_id}", Membership, revision=revision)


class ServiceAccounts(ResourceRoutes):
    async def create(
        self,
        project_id: str | None,
        name: str,
        public_key_pem: str | None = None,
        *,
        tenant_id: str | None = None,
        app_slug: str | None = None,
        role: Role | None = None,
        idempotency_key: str | None = None,
    ) -> ServiceAccount:
        """Create an account of a project, or of a tenant with `project_id=None`."""
        body = ServiceAccountCreate(
            project_id=project_id,
            tenant_id=tenant_id,
            name=name,
            app_slug=app_slug,
            role=role,
            public_key_pem=public_key_pem,
        )
        return await self._transport.post("/service-accounts", ServiceAccount, body, idempotency_key=idempotency_key)

    def list(
        self, *, project_id: str | None = None, tenant_id: str | None = None, limit: int | None = None
    ) -> Pager[ServiceAccount]:
        query = {"project_id": project_id, "tenant_id": tenant_id}
        return self._list("/service-accounts", ServiceAccountPage, query, limit=limit)

    async def get(self, service_account_id: str) -> ServiceAccount:
        return await self._transport.get(f"/service-accounts/{service_account_id}", ServiceAccount)

    async def update(self, service_account_id: str, *, disabled: bool, revision: int | None = None) -> ServiceAccount:
        body = ServiceAccountUpdate(disabled=disabled)
        return await self._transport.patch(
            f"/service-accounts/{service_account_id}", ServiceAccount, body, revision=revision
        )

    async def delete(self, service_account_id: str, *, revision: int | None = None) -> ServiceAccount:
        return await self._transport.delete(
            f"/service-accounts/{service_account_id}", ServiceAccount, revision=revision
        )

    # Two valid keys of a kind at most: add the next one, bring it out, revoke the last one.

    async def list_keys(self, service_account_id: str) -> Sequence[ServiceAccountKey]:
        page = await self._transport.get(f"/service-accounts/{service_account_id}/keys", ServiceAccountKeyPage)
        return page.items

    async def add_key(
        self,
        service_account_id: str,
        public_key_pem: str,
        *,
        kid: str | None = None,
        idempotency_key: str | None = None,
    ) -> ServiceAccountKey:
        body = ServiceAccountKeyAdd(public_key_pem=public_key_pem, kid=kid)
        path = f"/service-accounts/{service_account_id}/keys"
        return await self._transport.post(path, ServiceAccountKey, body, idempotency_key=idempotency_key)

    async def add_secret(self, service_account_id: str, *, idempotency_key: str | None = None) -> ServiceAccountKey:
        """Add a secret, which only this answer contains. If the answer is lost, revoke the secret and add another."""
        path = f"/service-accounts/{service_account_id}/secrets"
        return await self._transport.post(path, ServiceAccountKey, idempotency_key=idempotency_key)

    async def revoke_key(self, service_account_id: str, key_id: str) -> ServiceAccountKey:
        """Revoke a public key or a secret, and the tokens of the account."""
        return await self._transport.delete(f"/service-accounts/{service_account_id}/keys/{key_id}", ServiceAccountKey)
