"""Operations: requested by people, carried out by controllers under a lease."""

from collections.abc import Mapping, Sequence

from gpuaas_contract.access import AccessGrant, OperationAccessRequest
from gpuaas_contract.artifacts import Delivery, DeliveryRequest
from gpuaas_contract.base import JsonObject
from gpuaas_contract.instances import MemberStatus
from gpuaas_contract.operations import (
    CancelledRequest,
    Claim,
    ClaimRequest,
    CompleteRequest,
    FailRequest,
    LeaseRequest,
    Operation,
    OperationError,
    OperationPage,
    OperationState,
    RemoteCommand,
    StepReport,
    StepStatus,
    WorkAcknowledged,
)
from gpuaas_sdk.pages import Pager
from gpuaas_sdk.resources.base import ResourceRoutes
from gpuaas_sdk.transport import DEFAULT_TIMEOUT


class Operations(ResourceRoutes):
    def list(
        self,
        *,
        project_id: str | None = None,
        instance_id: str | None = None,
        member_id: str | None = None,
        state: OperationState | None = None,
        claimable: bool | None = None,
        limit: int | None = None,
    ) -> Pager[Operation]:
        query = {
            "project_id": project_id,
            "instance_id": instance_id,
            "member_id": member_id,
            "state": state,
            "claimable": "true" if claimable else None,
        }
        return self._list("/operations", OperationPage, query, limit=limit)

    async def get(self, operation_id: str) -> Operation:
        return await self._transport.get(f"/operations/{operation_id}", Operation)

    async def retry(self, operation_id: str, *, idempotency_key: str | None = None) -> Operation:
        path = f"/operations/{operation_id}/retry"
        return await self._transport.post(path, Operation, idempotency_key=idempotency_key)

    async def cancel(self, operation_id: str, *, idempotency_key: str | None = None) -> Operation:
        """Cancel at once if nobody holds the lease; otherwise ask the controller to stop (`cancel_requested`)."""
        path = f"/operations/{operation_id}/cancel"
        return await self._transport.post(path, Operation, idempotency_key=idempotency_key)

    async def claim(self, operation_id: str, holder: str) -> Claim:
        path = f"/operations/{operation_id}/claim"
        return await self._transport.post(path, Claim, ClaimRequest(holder=holder))

    async def heartbeat(self, operation_id: str, fencing_token: int) -> WorkAcknowledged:
        body = LeaseRequest(fencing_token=fencing_token)
        path = f"/operations/{operation_id}/heartbeat"
        return await self._transport.post(path, WorkAcknowledged, body, keyed=False)

    async def yield_lease(
        self, operation_id: str, fencing_token: int, *, idempotency_key: str | None = None
    ) -> Operation:
        """Hand the lease back without an outcome: the operation can be claimed again at once."""
        path = f"/operations/{operation_id}/yield"
        body = LeaseRequest(fencing_token=fencing_token)
        return await self._transport.post(path, Operation, body, idempotency_key=idempotency_key)

    async def report_step(
        self,
        operation_id: str,
        fencing_token: int,
        *,
        key: str,
        title: str,
        status: StepStatus,
        message: str = "",
        evidence: JsonObject | None = None,
        commands: Sequence[RemoteCommand] = (),
    ) -> WorkAcknowledged:
        body = StepReport(
            fencing_token=fencing_token,
            key=key,
            title=title,
            status=status,
            message=message,
            evidence=evidence or {},
            commands=[*commands],
        )
        return await self._transport.post(f"/operations/{operation_id}/steps", WorkAcknowledged, body)

    async def complete(
        self,
        operation_id: str,
        fencing_token: int,
        *,
        result: JsonObject | None = None,
        member_statuses: Mapping[str, MemberStatus] | None = None,
        idempotency_key: str | None = None,
    ) -> Operation:
        path = f"/operations/{operation_id}/complete"
        body = CompleteRequest(
            fencing_token=fencing_token, result=result or {}, member_statuses=dict(member_statuses or {})
        )
        return await self._transport.post(path, Operation, body, idempotency_key=idempotency_key)

    async def fail(
        self,
        operation_id: str,
        fencing_token: int,
        error: OperationError,
        *,
        result: JsonObject | None = None,
        idempotency_key: str | None = None,
    ) -> Operation:
        path = f"/operations/{operation_id}/fail"
        body = FailRequest(fencing_token=fencing_token, error=error, result=result or {})
        return await self._transport.post(path, Operation, body, idempotency_key=idempotency_key)

    async def end_cancelled(
        self,
        operation_id: str,
        fencing_token: int,
        *,
        result: JsonObject | None = None,
        member_statuses: Mapping[str, MemberStatus] | None = None,
        idempotency_key: str | None = None,
    ) -> Operation:
        """Report that the work stopped because cancellation was requested."""
        path = f"/operations/{operation_id}/cancelled"
        body = CancelledRequest(
            fencing_token=fencing_token, result=result or {}, member_statuses=dict(member_statuses or {})
        )
        return await self._transport.post(path, Operation, body, idempotency_key=idempotency_key)

    async def access(
        self, operation_id: str, fencing_token: int, public_key: str, *, observer: bool = False
    ) -> AccessGrant:
        """Issue a certificate for exactly the machines of the operation, for its lease holder; with `observer` for the
        machines of all members of the instance, as a user who can read and change nothing."""
        body = OperationAccessRequest(fencing_token=fencing_token, public_key=public_key, observer=observer)
        return await self._transport.post(f"/operations/{operation_id}/access", AccessGrant, body)

    async def deliver(self, operation_id: str, fencing_token: int, *, allocation_id: str, digest: str) -> Delivery:
        body = DeliveryRequest(fencing_token=fencing_token, allocation_id=allocation_id, digest=digest)
        return await self._transport.post(f"/operations/{operation_id}/deliveries", Delivery, body)


class Deliveries(ResourceRoutes):
    async def get(self, delivery_id: str, *, wait: float | None = None) -> Delivery:
        """Fetch a delivery. With `wait`, the answer comes when it is no longer pending, or after that many seconds."""
        timeout = None if wait is None else wait + DEFAULT_TIMEOUT
        query = {"wait": None if wait is None else int(wait)}
        return await self._transport.get(f"/deliveries/{delivery_id}", Delivery, query, timeout=timeout)
