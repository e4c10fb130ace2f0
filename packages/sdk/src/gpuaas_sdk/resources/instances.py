"""App instances and their members."""

from collections.abc import Sequence
from typing import Protocol
from urllib.parse import quote

from gpuaas_contract.base import JsonObject
from gpuaas_contract.bulk import Bulk, BulkPage, BulkPolicy, MemberOperationsCreate, MembersAdd, Policy
from gpuaas_contract.instances import (
    AccessNote,
    AccountId,
    Condition,
    Instance,
    InstanceDeploy,
    InstancePage,
    InstanceReport,
    InstanceUpdate,
    Member,
    MemberPage,
    MemberReport,
    MemberStatus,
    WriteOff,
)
from gpuaas_contract.operations import Operation, OperationCreate
from gpuaas_contract.people import Person, PersonPage
from gpuaas_contract.ports import MemberPort
from gpuaas_sdk.pages import Pager
from gpuaas_sdk.resources.base import ResourceRoutes


class HeldLease(Protocol):
    """The identity of a lease, which every write under it carries."""

    @property
    def operation_id(self) -> str | None:
        """None for the reconcile lease of the instance."""
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

    async def update(self, instance_id: str, *, mode: str, idempotency_key: str | None = None) -> Instance:
        """Change the mode of an instance; its members and machines must fit the other one."""
        path, body = f"/app-instances/{instance_id}", InstanceUpdate(mode=mode)
        return await self._transport.patch(path, Instance, body, idempotency_key=idempotency_key)

    async def set_operator(
        self,
        instance_id: str,
        account_id: AccountId | None,
        *,
        revision: int | None = None,
        idempotency_key: str | None = None,
    ) -> Instance:
        """Let this service account alone work on the instance from now on; None: any of the app in the project."""
        path, body = f"/app-instances/{instance_id}", InstanceUpdate(operator_account_id=account_id)
        return await self._transport.patch(path, Instance, body, revision=revision, idempotency_key=idempotency_key)

    def members(self, instance_id: str, *, removed: bool | None = None, limit: int | None = None) -> Pager[Member]:
        """List members, including removed ones; `removed` selects those that are removed or not."""
        query = {"removed": None if removed is None else str(removed).lower()}
        return self._list(f"/app-instances/{instance_id}/members", MemberPage, query, limit=limit)

    def people(self, instance_id: str, *, limit: int | None = None) -> Pager[Person]:
        """List everybody who may use the instance, and who just lost that right (`left_at`)."""
        return self._list(f"/app-instances/{instance_id}/people", PersonPage, limit=limit)

    async def request(
        self,
        instance_id: str,
        kind: str,
        *,
        member_id: str | None = None,
        input: JsonObject | None = None,
        queue: bool = False,
        idempotency_key: str | None = None,
    ) -> Operation:
        """Request an operation that the app's manifest declares, on the whole instance or on one of its members."""
        path = f"/app-instances/{instance_id}/operations"
        body = OperationCreate(kind=kind, member_id=member_id, input=input or {}, queue=queue)
        return await self._transport.post(path, Operation, body, idempotency_key=idempotency_key)

    async def add_members(
        self,
        instance_id: str,
        component_key: str,
        allocation_ids: Sequence[str],
        *,
        policy: BulkPolicy = Policy.ALL_OR_NOTHING,
        input: JsonObject | None = None,
        idempotency_key: str | None = None,
    ) -> Bulk:
        path = f"/app-instances/{instance_id}/members"
        body = MembersAdd(
            component_key=component_key, allocation_ids=[*allocation_ids], policy=policy, input=input or {}
        )
        return await self._transport.post(path, Bulk, body, idempotency_key=idempotency_key)

    async def request_on_members(
        self,
        instance_id: str,
        kind: str,
        member_ids: Sequence[str],
        *,
        policy: BulkPolicy = Policy.ALL_OR_NOTHING,
        input: JsonObject | None = None,
        queue: bool = False,
        idempotency_key: str | None = None,
    ) -> Bulk:
        """Request the same operation on many members, with one result each."""
        path = f"/app-instances/{instance_id}/member-operations"
        body = MemberOperationsCreate(
            kind=kind, member_ids=[*member_ids], policy=policy, input=input or {}, queue=queue
        )
        return await self._transport.post(path, Bulk, body, idempotency_key=idempotency_key)

    def bulk_operations(self, instance_id: str, *, limit: int | None = None) -> Pager[Bulk]:
        return self._list(f"/app-instances/{instance_id}/bulk-operations", BulkPage, limit=limit)

    async def abandon(self, instance_id: str, reason: str, *, idempotency_key: str | None = None) -> Instance:
        """End an instance whose decommission failed, without proof that nothing is left."""
        path = f"/app-instances/{instance_id}/abandon"
        return await self._transport.post(path, Instance, WriteOff(reason=reason), idempotency_key=idempotency_key)

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

    async def port(self, member_id: str, port: str) -> MemberPort:
        """Look whether a tunnel to a declared port, by name or number, can be opened now; nothing is connected to."""
        return await self._transport.get(f"/members/{member_id}/ports/{quote(port, safe='')}", MemberPort)

    async def forget(self, member_id: str, reason: str, *, idempotency_key: str | None = None) -> Member:
        """Make a member whose removal failed a tombstone, without proof that nothing is left."""
        path = f"/members/{member_id}/forget"
        return await self._transport.post(path, Member, WriteOff(reason=reason), idempotency_key=idempotency_key)

    async def report(
        self,
        member_id: str,
        lease: HeldLease,
        *,
        status: MemberStatus | None = None,
        conditions: Sequence[Condition] | None = None,
        adapter_detail: JsonObject | None = None,
        observed_runtime: str | None = None,
    ) -> Member:
        body = MemberReport(
            operation_id=lease.operation_id,
            fencing_token=lease.fencing_token,
            status=status,
            conditions=None if conditions is None else [*conditions],
            adapter_detail=adapter_detail,
            observed_runtime=observed_runtime,
        )
        return await self._transport.post(f"/members/{member_id}/report", Member, body)


class BulkOperations(ResourceRoutes):
    async def get(self, bulk_id: str) -> Bulk:
        return await self._transport.get(f"/bulk-operations/{bulk_id}", Bulk)
