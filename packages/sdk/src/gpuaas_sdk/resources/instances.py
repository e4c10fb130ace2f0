"""App instances and their members."""

from collections.abc import Sequence
from typing import Protocol

from gpuaas_contract.base import JsonObject
from gpuaas_contract.instances import (
    AccessNote,
    Condition,
    Instance,
    InstanceDeploy,
    InstancePage,
    InstanceReport,
    Member,
    MemberPage,
    MemberReport,
    MemberStatus,
)
from gpuaas_contract.operations import Operation, OperationCreate
from gpuaas_sdk.pages import Pager
from gpuaas_sdk.resources.base import ResourceRoutes


class HeldLease(Protocol):
    """What a write under a lease needs to carry."""

    @property
    def operation_id(self) -> str | None:
        """None: the reconcile lease of the instance."""
        ...

    @property
    def fencing_token(self) -> int: ...


class Instances(ResourceRoutes):
    async def deploy(self, request: InstanceDeploy, *, idempotency_key: str | None = None) -> Instance:
        return await self._transport.post("/app-instances", Instance, request, idempotency_key=idempotency_key)

    def list(self, *, project_id: str | None = None, limit: int | None = None) -> Pager[Instance]:
        return self._list("/app-instances", InstancePage, {"project_id": project_id}, limit=limit)

    async def get(self, instance_id: str) -> Instance:
        return await self._transport.get(f"/app-instances/{instance_id}", Instance)

    def members(self, instance_id: str, *, limit: int | None = None) -> Pager[Member]:
        return self._list(f"/app-instances/{instance_id}/members", MemberPage, limit=limit)

    async def request(
        self,
        instance_id: str,
        kind: str,
        *,
        member_id: str | None = None,
        input: JsonObject | None = None,
        idempotency_key: str | None = None,
    ) -> Operation:
        """Ask for an operation: `decommission`, or another kind that the app's manifest names."""
        path = f"/app-instances/{instance_id}/operations"
        body = OperationCreate(kind=kind, member_id=member_id, input=input or {})
        return await self._transport.post(path, Operation, body, idempotency_key=idempotency_key)

    async def report(
        self,
        instance_id: str,
        lease: HeldLease,
        *,
        conditions: Sequence[Condition] | None = None,
        access_notes: Sequence[AccessNote] | None = None,
        observed_runtime: str | None = None,
    ) -> Instance:
        body = InstanceReport(
            operation_id=lease.operation_id,
            fencing_token=lease.fencing_token,
            conditions=None if conditions is None else [*conditions],
            access_notes=None if access_notes is None else [*access_notes],
            observed_runtime=observed_runtime,
        )
        return await self._transport.post(f"/app-instances/{instance_id}/report", Instance, body)


class Members(ResourceRoutes):
    async def get(self, member_id: str) -> Member:
        return await self._transport.get(f"/members/{member_id}", Member)

    async def report(
        self,
        member_id: str,
        lease: HeldLease,
        *,
        status: MemberStatus | None = None,
        conditions: Sequence[Condition] | None = None,
        adapter_detail: JsonObject | None = None,
    ) -> Member:
        body = MemberReport(
            operation_id=lease.operation_id,
            fencing_token=lease.fencing_token,
            status=status,
            conditions=None if conditions is None else [*conditions],
            adapter_detail=adapter_detail,
        )
        return await self._transport.post(f"/members/{member_id}/report", Member, body)
