"""Reconcile leases: the right to observe an instance."""

from gpuaas_contract.access import AccessGrant, LeaseAccessRequest
from gpuaas_contract.operations import ClaimRequest, LeaseRequest
from gpuaas_contract.reconcile import ReconcileClaim, ReconcileLease
from gpuaas_sdk.resources.base import ResourceRoutes


class ReconcileLeases(ResourceRoutes):
    async def claim(self, instance_id: str, holder: str) -> ReconcileClaim:
        return await self._transport.post(_path(instance_id), ReconcileClaim, ClaimRequest(holder=holder))

    async def heartbeat(self, instance_id: str, fencing_token: int) -> ReconcileLease:
        body = LeaseRequest(fencing_token=fencing_token)
        return await self._transport.post(f"{_path(instance_id)}/heartbeat", ReconcileLease, body, keyed=False)

    async def yield_lease(self, instance_id: str, fencing_token: int) -> ReconcileLease:
        """Hand the lease back, so that another controller can claim it at once."""
        body = LeaseRequest(fencing_token=fencing_token)
        return await self._transport.post(f"{_path(instance_id)}/yield", ReconcileLease, body)

    async def access(self, instance_id: str, fencing_token: int, public_key: str) -> AccessGrant:
        """Issue an observer's certificate for all machines of the instance."""
        body = LeaseAccessRequest(fencing_token=fencing_token, public_key=public_key)
        return await self._transport.post(f"{_path(instance_id)}/access", AccessGrant, body)


def _path(instance_id: str) -> str:
    return f"/app-instances/{instance_id}/reconcile-lease"
