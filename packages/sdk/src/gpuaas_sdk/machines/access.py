"""The right to reach the machines of an operation: a key that never moves, and certificates for minutes; for
external machines the key of an access credential, held in memory for as long as the lease."""

import asyncio
from abc import ABC, abstractmethod
from datetime import timedelta

import asyncssh

from gpuaas_contract.access import AccessGrant, MachineAddress
from gpuaas_contract.operations import Claim
from gpuaas_contract.reconcile import ReconcileClaim
from gpuaas_sdk import clock
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.machines.base import MachineUnreachableError
from gpuaas_sdk.runtime.secrets import LeaseSecrets

RENEW_BEFORE = timedelta(seconds=30)
"""No new command starts under a grant with less time left than this."""


class GrantedAccess(ABC):
    """Asks for grants as they are needed; all machines of one lease share the present one."""

    def __init__(self, client: GpuaasClient, correlation: str) -> None:
        self.client = client
        self.correlation = correlation
        self._lock = asyncio.Lock()
        self._grant: AccessGrant | None = None
        self.key = asyncssh.generate_private_key("ssh-ed25519")

    @abstractmethod
    async def _ask(self, public_key: str) -> AccessGrant:
        """Ask for another grant."""

    @abstractmethod
    async def stored_key(self, credential_id: str) -> asyncssh.SSHKey:
        """The private key of an access credential; it is never written to a file."""

    async def grant(self, *, not_this: AccessGrant | None = None) -> AccessGrant:
        """The present grant, or a new one when it is nearly over or turned out to be useless (`not_this`)."""
        async with self._lock:
            if self._grant is None or self._grant is not_this or self.is_stale(self._grant):
                public_key = self.key.export_public_key().decode().strip()
                self._grant = await self._ask(public_key)
            return self._grant

    @staticmethod
    def is_stale(grant: AccessGrant) -> bool:
        return grant.expires_at - clock.now() < RENEW_BEFORE

    @staticmethod
    def address_in(grant: AccessGrant, allocation_id: str) -> MachineAddress | None:
        return next((m for m in grant.machines if m.allocation_id == allocation_id), None)

    @staticmethod
    def reason_in(grant: AccessGrant | None, allocation_id: str) -> str | None:
        """Why the grant is not for this machine, where the platform has said so."""
        left_out = grant.left_out if grant is not None else []
        return next((each.reason for each in left_out if each.allocation_id == allocation_id), None)


class OperationAccess(GrantedAccess):
    """As root, to change things: under the lease of an operation."""

    def __init__(self, client: GpuaasClient, claim: Claim) -> None:
        super().__init__(client, claim.operation.correlation_id)
        self.claim = claim
        self.secrets = LeaseSecrets(client, claim.operation.id, claim.fencing_token)

    async def _ask(self, public_key: str) -> AccessGrant:
        return await self.client.operations.access(self.claim.operation.id, self.claim.fencing_token, public_key)

    async def stored_key(self, credential_id: str) -> asyncssh.SSHKey:
        secret = await self.secrets.credential(credential_id)
        return asyncssh.import_private_key(secret.reveal())


class ObserverAccess(GrantedAccess):
    """As an observer, to look."""

    async def stored_key(self, credential_id: str) -> asyncssh.SSHKey:
        raise MachineUnreachableError("an observer gets no stored key: the key allows more than reading")


class MemberObserverAccess(ObserverAccess):
    """Under the lease of an operation: the machines of all members of its instance."""

    def __init__(self, client: GpuaasClient, claim: Claim) -> None:
        super().__init__(client, claim.operation.correlation_id)
        self._claim = claim

    async def _ask(self, public_key: str) -> AccessGrant:
        operations, claim = self.client.operations, self._claim
        return await operations.access(claim.operation.id, claim.fencing_token, public_key, observer=True)


class ReconcileAccess(ObserverAccess):
    """Under the reconcile lease of an instance."""

    def __init__(self, client: GpuaasClient, claim: ReconcileClaim, correlation: str) -> None:
        super().__init__(client, correlation)
        self._claim = claim

    async def _ask(self, public_key: str) -> AccessGrant:
        leases, claim = self.client.reconcile_leases, self._claim
        return await leases.access(claim.lease.instance_id, claim.fencing_token, public_key)
