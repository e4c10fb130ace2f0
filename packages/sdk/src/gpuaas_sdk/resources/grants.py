"""Grants of people on machines, and the SSH keys that people bring."""

from datetime import datetime

from gpuaas_contract import ids
from gpuaas_contract.grants import Grant, GrantCreate, GrantPage
from gpuaas_contract.ssh_keys import SshKey, SshKeyCreate, SshKeyPage
from gpuaas_sdk.pages import Pager
from gpuaas_sdk.resources.base import ResourceRoutes


class Grants(ResourceRoutes):
    async def create(
        self,
        allocation_id: str,
        person: str,
        *,
        sudo: bool = False,
        remote_forwarding: bool = False,
        expires_at: datetime | None = None,
        idempotency_key: str | None = None,
    ) -> Grant:
        """Grant a person, by id or e-mail address, a user on the machine; `active` when the machine has the user."""
        named = {"user_id" if ids.is_id(person, ids.USER) else "email": person}
        body = GrantCreate(**named, sudo=sudo, remote_forwarding=remote_forwarding, expires_at=expires_at)
        path = f"/allocations/{allocation_id}/grants"
        return await self._transport.post(path, Grant, body, idempotency_key=idempotency_key)

    def list(self, allocation_id: str, *, user_id: str | None = None, limit: int | None = None) -> Pager[Grant]:
        """List the grants on a machine, including ended ones."""
        return self._list(f"/allocations/{allocation_id}/grants", GrantPage, {"user_id": user_id}, limit=limit)

    def own(self, *, limit: int | None = None) -> Pager[Grant]:
        """List the caller's own live grants, on all machines."""
        return self._list("/users/me/grants", GrantPage, {}, limit=limit)

    async def get(self, grant_id: str) -> Grant:
        return await self._transport.get(f"/grants/{grant_id}", Grant)

    async def revoke(self, grant_id: str, *, revision: int | None = None) -> Grant:
        """Revoke the grant at once; `revoked` when the machine has removed the user."""
        return await self._transport.post(f"/grants/{grant_id}/revoke", Grant, revision=revision)


class SshKeys(ResourceRoutes):
    """The caller's own SSH public keys."""

    async def add(self, name: str, public_key: str, *, idempotency_key: str | None = None) -> SshKey:
        body = SshKeyCreate(name=name, public_key=public_key)
        return await self._transport.post("/users/me/ssh-keys", SshKey, body, idempotency_key=idempotency_key)

    def list(self, *, limit: int | None = None) -> Pager[SshKey]:
        return self._list("/users/me/ssh-keys", SshKeyPage, {}, limit=limit)

    async def remove(self, ssh_key_id: str, *, revision: int | None = None) -> SshKey:
        return await self._transport.delete(f"/users/me/ssh-keys/{ssh_key_id}", SshKey, revision=revision)
