"""Keep one lease alive, and notice at once when it is lost."""

import asyncio
import logging
from abc import ABC, abstractmethod
from collections.abc import Callable

from gpuaas_contract.operations import Claim, OperationState
from gpuaas_contract.reconcile import ReconcileClaim
from gpuaas_sdk.client import GpuaasClient
from gpuaas_sdk.errors import (
    GpuaasError,
    InvalidStateError,
    LeaseLostError,
    NotFoundError,
)

logger = logging.getLogger(__name__)
HEARTBEATS_PER_LEASE = 3
PAUSE_AFTER_FAULT = 0.5


class KeptLease(ABC):
    """A lease that lasts while it is renewed. `claimed_at` is read before the claim is sent: never too late."""

    def __init__(self, what: str, fencing_token: int, seconds: float, *, claimed_at: float) -> None:
        self._what = what
        self._seconds = seconds
        self._ends_at = claimed_at + seconds
        self._check_now = asyncio.Event()
        self.fencing_token = fencing_token

    @abstractmethod
    async def _beat(self) -> None:
        """Renew the lease; raise if it was lost."""

    def check_now(self) -> None:
        """Renew at once: something happened to the target, and the lease may be lost."""
        self._check_now.set()

    async def keep(self) -> None:
        """Heartbeat for ever; raises LeaseLostError when the lease is gone or can no longer be ours."""
        pause = self._seconds / HEARTBEATS_PER_LEASE
        while True:
            try:
                async with asyncio.timeout(pause):
                    await self._check_now.wait()
            except TimeoutError:
                pass
            self._check_now.clear()
            pause = await self._renew()

    async def _renew(self) -> float:
        loop = asyncio.get_running_loop()
        sent_at = loop.time()
        try:
            async with asyncio.timeout_at(self._ends_at):
                await self._beat()
        except TimeoutError:
            raise LeaseLostError("the lease expired while the platform did not answer") from None
        except (LeaseLostError, NotFoundError, InvalidStateError) as error:
            raise LeaseLostError(f"the lease was lost: {error}") from None
        except GpuaasError as error:
            # Ours until it runs out: the platform may be restarting.
            logger.warning("cannot renew the lease of %s yet: %s", self._what, error)
            left = self._ends_at - loop.time()
            if left <= 0:
                raise LeaseLostError("the lease expired while the platform could not be reached") from None
            return min(PAUSE_AFTER_FAULT, left)
        self._ends_at = sent_at + self._seconds
        return self._seconds / HEARTBEATS_PER_LEASE


class Lease(KeptLease):
    """The right to work on one operation."""

    def __init__(self, client: GpuaasClient, claim: Claim, *, claimed_at: float) -> None:
        super().__init__(claim.operation.id, claim.fencing_token, claim.lease_seconds, claimed_at=claimed_at)
        self._client = client
        self.operation_id = claim.operation.id
        self.on_cancel: Callable[[], None] = lambda: None
        """Called when a heart-beat says that the operation is to be cancelled."""

    async def _beat(self) -> None:
        answer = await self._client.operations.heartbeat(self.operation_id, self.fencing_token)
        if answer.state != OperationState.RUNNING:
            raise LeaseLostError(f"the operation is {answer.state}")
        if answer.cancel_requested:
            self.on_cancel()


class KeptReconcileLease(KeptLease):
    """The right to observe one instance."""

    def __init__(self, client: GpuaasClient, claim: ReconcileClaim, *, claimed_at: float) -> None:
        self.instance_id = claim.lease.instance_id
        super().__init__(self.instance_id, claim.fencing_token, claim.lease_seconds, claimed_at=claimed_at)
        self._client = client

    async def _beat(self) -> None:
        await self._client.reconcile_leases.heartbeat(self.instance_id, self.fencing_token)
