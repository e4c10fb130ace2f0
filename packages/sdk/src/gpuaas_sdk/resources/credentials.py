"""Access credentials: SSH keys for machines outside of the project's SSH authority."""

from pydantic import SecretStr

from gpuaas_contract.credentials import Credential, CredentialCreate, CredentialPage, CredentialRotate
from gpuaas_contract.secret_deliveries import SecretDelivery, SecretDeliveryRequest
from gpuaas_sdk.pages import Pager
from gpuaas_sdk.resources.base import ResourceRoutes


def _secret(private_key: str | None) -> SecretStr | None:
    return None if private_key is None else SecretStr(private_key)


class AccessCredentials(ResourceRoutes):
    async def create(
        self, project_id: str, name: str, *, private_key: str | None = None, idempotency_key: str | None = None
    ) -> Credential:
        """Create a credential. Without a private key (in OpenSSH form) the platform makes one that nobody ever sees."""
        body = CredentialCreate(project_id=project_id, name=name, private_key=_secret(private_key))
        return await self._transport.post("/credentials", Credential, body, idempotency_key=idempotency_key)

    def list(self, *, project_id: str | None = None, limit: int | None = None) -> Pager[Credential]:
        return self._list("/credentials", CredentialPage, {"project_id": project_id}, limit=limit)

    async def get(self, credential_id: str) -> Credential:
        return await self._transport.get(f"/credentials/{credential_id}", Credential)

    async def rotate(
        self, credential_id: str, *, private_key: str | None = None, idempotency_key: str | None = None
    ) -> Credential:
        """Add a valid version. End the previous one when the new public key is on all machines."""
        body = CredentialRotate(private_key=_secret(private_key))
        path = f"/credentials/{credential_id}/rotate"
        return await self._transport.post(path, Credential, body, idempotency_key=idempotency_key)

    async def end_version(self, credential_id: str, version: int) -> Credential:
        return await self._transport.delete(f"/credentials/{credential_id}/versions/{version}", Credential)

    async def revoke(self, credential_id: str, *, revision: int | None = None) -> Credential:
        """Stop all deliveries and destroy the keys. This cannot be undone."""
        return await self._transport.post(f"/credentials/{credential_id}/revoke", Credential, revision=revision)

    async def delete(self, credential_id: str, *, revision: int | None = None) -> Credential:
        return await self._transport.delete(f"/credentials/{credential_id}", Credential, revision=revision)

    async def deliver(
        self,
        credential_id: str,
        operation_id: str,
        fencing_token: int,
        *,
        version: int | None = None,
        idempotency_key: str | None = None,
    ) -> SecretDelivery:
        """Deliver a wrapping token to the lease holder; the runtime's `credential` does this and unwraps it."""
        body = SecretDeliveryRequest(operation_id=operation_id, fencing_token=fencing_token, version=version)
        path = f"/credentials/{credential_id}/deliveries"
        return await self._transport.post(path, SecretDelivery, body, idempotency_key=idempotency_key)
