"""SSH authorities of projects and tenants."""

from gpuaas_contract.ssh_authorities import AuthorityRetire, SshAuthority
from gpuaas_sdk.resources.base import ResourceRoutes


class SshAuthorities(ResourceRoutes):
    """Routes take the id of a project, or of a tenant for its own machines."""

    async def get(self, owner_id: str) -> SshAuthority:
        return await self._transport.get(f"/ssh-authorities/{owner_id}", SshAuthority)

    async def rotate(self, owner_id: str, *, idempotency_key: str | None = None) -> SshAuthority:
        """Add a new key beside the old one; retire the old one when no machine waits any more."""
        path = f"/ssh-authorities/{owner_id}/rotate"
        return await self._transport.post(path, SshAuthority, idempotency_key=idempotency_key)

    async def retire(self, owner_id: str, *, force: bool = False, idempotency_key: str | None = None) -> SshAuthority:
        path, body = f"/ssh-authorities/{owner_id}/retire", AuthorityRetire(force=force)
        return await self._transport.post(path, SshAuthority, body, idempotency_key=idempotency_key)
