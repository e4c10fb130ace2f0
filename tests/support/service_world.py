"""The services on a database of their own, without HTTP and without loops: thousands of steps in a minute.

Time does not pass here: leases and deadlines run out when a test says so."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gpuaas_contract import ids
from gpuaas_contract.allocations import Shape
from gpuaas_contract.bulk import Bulk, BulkPolicy, MemberOperationsCreate, MembersAdd
from gpuaas_contract.identity import PrincipalKind, Role
from gpuaas_contract.instances import (
    Condition,
    ConditionStatus,
    Instance,
    InstanceDeploy,
    InstanceReport,
    Member,
    MemberReport,
    MemberStatus,
    Placement,
    WriteOff,
)
from gpuaas_contract.operations import (
    CancelledRequest,
    Claim,
    ClaimRequest,
    CompleteRequest,
    FailRequest,
    Operation,
    OperationCreate,
    OperationError,
    StepReport,
    StepStatus,
    WorkAcknowledged,
)
from gpuaas_platform.core.checks import CheckPool, Verdicts
from gpuaas_platform.core.database import Database, Transaction
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.identity.rules.policy import CONTROLLER, Caller, RoleGrant
from gpuaas_platform.instances.service import deploy, instances
from gpuaas_platform.operations.service import bulks, operations, reports, requests, work, write_offs
from tests.support.lifecycle import manifest

T = TypeVar("T")
SLUG = "echo"
FOR_EVER = 3_600


class _RolledBack(Exception):  # noqa: N818 - not an error
    pass


@dataclass
class ServiceWorld:
    database: Database
    checks: CheckPool = field(default_factory=lambda: CheckPool(1, 60))
    tenant_id: str = field(default_factory=lambda: ids.new_id(ids.TENANT))
    project_id: str = field(default_factory=lambda: ids.new_id(ids.PROJECT))

    @classmethod
    @asynccontextmanager
    async def opened(cls, url: str) -> "AsyncIterator[ServiceWorld]":
        database = Database(url, max_size=8)
        await database.open()
        world = cls(database)
        try:
            await world._fill()
            yield world
        finally:
            await world.checks.close()
            await database.close()

    async def _fill(self) -> None:
        async with self.database.system_transaction() as tx:
            await tx.run("INSERT INTO tenants (id, name, title) VALUES (%(id)s, %(id)s, 'T')", id=self.tenant_id)
            await tx.run(
                "INSERT INTO projects (id, tenant_id, name, title) VALUES (%(id)s, %(tenant)s, 'p', 'P')",
                id=self.project_id,
                tenant=self.tenant_id,
            )
            await tx.run(
                "INSERT INTO entitlements (id, tenant_id, app_slug) VALUES (%(id)s, %(tenant)s, %(slug)s)",
                id=ids.new_id("ent"),
                tenant=self.tenant_id,
                slug=SLUG,
            )
            for version in ("1.1.0", "1.2.0"):
                await tx.run(
                    """INSERT INTO app_versions (id, app_slug, version, manifest)
                       VALUES (%(id)s, %(slug)s, %(version)s, %(manifest)s)""",
                    id=ids.new_id(ids.APP_VERSION),
                    slug=SLUG,
                    version=version,
                    manifest=manifest(SLUG, version).model_dump(mode="json", by_alias=True),
                )

    async def allocations(self, count: int) -> list[str]:
        made = [ids.new_id(ids.ALLOCATION) for _ in range(count)]
        async with self.database.system_transaction() as tx:
            for id in made:
                await tx.run(
                    """INSERT INTO allocations (id, tenant_id, project_id, name, hostname, shape, status,
                                                correlation_id)
                       VALUES (%(id)s, %(tenant)s, %(project)s, %(id)s, %(id)s, %(shape)s, 'active', 'cor_test')""",
                    id=id,
                    tenant=self.tenant_id,
                    project=self.project_id,
                    shape=Shape().model_dump(mode="json"),
                )
        return made

    # Who acts

    @property
    def admin(self) -> Caller:
        grants = (RoleGrant(Role.PROJECT_ADMIN, project_id=self.project_id),)
        return Caller(PrincipalKind.USER, "usr_admin", "admin", grants, tenant_ids=frozenset({self.tenant_id}))

    def controller(self, number: int = 0) -> Caller:
        grants = (RoleGrant(CONTROLLER, project_id=self.project_id),)
        return Caller(PrincipalKind.SERVICE_ACCOUNT, f"sva_{number}", f"controller-{number}", grants, app_slug=SLUG)

    async def act(self, effect: Callable[[Transaction], Awaitable[T]], caller: Caller | None = None) -> T:
        verdicts = Verdicts(self.checks)

        async def attempt() -> T:
            async with self.database.transaction((caller or self.admin).id, ids.new_id(ids.CORRELATION)) as tx:
                tx.verdicts = verdicts
                return await effect(tx)

        return await verdicts.until_known(attempt)

    async def attempt(self, effect: Callable[[Transaction], Awaitable[Any]]) -> Refusal | None:
        """Whether it would be accepted now; nothing stays of it."""

        async def roll_back(tx: Transaction) -> None:
            await effect(tx)
            raise _RolledBack

        try:
            await self.act(roll_back)
            return None
        except _RolledBack:
            return None
        except Refusal as refusal:
            return refusal

    # What people do

    async def deploy(self, head: str, *tails: str, name: str = "greeter") -> Instance:
        placements = [Placement(component_key="head", allocation_id=head)]
        placements += [Placement(component_key="tail", allocation_id=tail) for tail in tails]
        body = InstanceDeploy(
            project_id=self.project_id, app_slug=SLUG, version="1.1.0", name=name, placement_intent=placements
        )
        return await self.act(lambda tx: deploy.deploy_instance(tx, self.admin, body))

    def requesting(
        self, instance_id: str, kind: str, member_id: str | None = None, *, queue: bool = False, **input: Any
    ) -> Callable[[Transaction], Awaitable[Operation]]:
        body = OperationCreate(kind=kind, member_id=member_id, input=input, queue=queue)
        return lambda tx: requests.request_operation(tx, self.admin, instance_id, body)

    def retrying(self, operation_id: str) -> Callable[[Transaction], Awaitable[Operation]]:
        return lambda tx: requests.retry_operation(tx, self.admin, operation_id)

    def cancelling(self, operation_id: str) -> Callable[[Transaction], Awaitable[Operation]]:
        return lambda tx: requests.cancel_operation(tx, self.admin, operation_id)

    def adding(
        self, instance_id: str, allocation_ids: list[str], policy: BulkPolicy
    ) -> Callable[[Transaction], Awaitable[Bulk]]:
        body = MembersAdd(component_key="tail", allocation_ids=allocation_ids, policy=policy)
        return lambda tx: bulks.add_members(tx, self.admin, instance_id, body)

    def requesting_many(
        self, instance_id: str, kind: str, member_ids: list[str], policy: BulkPolicy, *, queue: bool = False
    ) -> Callable[[Transaction], Awaitable[Bulk]]:
        body = MemberOperationsCreate(kind=kind, member_ids=member_ids, policy=policy, queue=queue)
        return lambda tx: bulks.request_on_members(tx, self.admin, instance_id, body)

    def forgetting(self, member_id: str) -> Callable[[Transaction], Awaitable[Member]]:
        return lambda tx: write_offs.forget_member(tx, self.admin, member_id, WriteOff(reason="lost"))

    def abandoning(self, instance_id: str) -> Callable[[Transaction], Awaitable[Instance]]:
        return lambda tx: write_offs.abandon_instance(tx, self.admin, instance_id, WriteOff(reason="lost"))

    async def instance(self, instance_id: str) -> Instance:
        return await self.act(lambda tx: instances.get_instance(tx, self.admin, instance_id))

    async def members(self, instance_id: str) -> list[Member]:
        page = await self.act(lambda tx: instances.list_members(tx, self.admin, instance_id, None, None, 500))
        return page.items

    async def operations(self, instance_id: str) -> list[Operation]:
        page = await self.act(
            lambda tx: operations.list_operations(
                tx, self.admin, None, instance_id, None, None, claimable=False, cursor=None, limit=500
            )
        )
        return page.items

    async def claimable(self) -> list[Operation]:
        caller = self.controller()
        page = await self.act(
            lambda tx: operations.list_operations(
                tx, caller, None, None, None, None, claimable=True, cursor=None, limit=500
            ),
            caller,
        )
        return page.items

    # What controllers do

    async def claim(self, operation_id: str, number: int = 0) -> Claim:
        caller = self.controller(number)
        body = ClaimRequest(holder=caller.name)
        return await self.act(lambda tx: work.claim_operation(tx, caller, operation_id, body, FOR_EVER), caller)

    async def complete(self, operation: Operation, token: int, number: int = 0, **statuses: MemberStatus) -> Operation:
        caller = self.controller(number)
        body = CompleteRequest(fencing_token=token, member_statuses=statuses)
        return await self.act(lambda tx: work.complete_operation(tx, caller, operation.id, body), caller)

    async def fail(self, operation_id: str, token: int, number: int = 0, *, retryable: bool = True) -> Operation:
        caller = self.controller(number)
        error = OperationError(code="hoarse", detail="the machine is hoarse", retryable=retryable)
        body = FailRequest(fencing_token=token, error=error)
        return await self.act(lambda tx: work.fail_operation(tx, caller, operation_id, body), caller)

    async def end_cancelled(self, operation_id: str, token: int, number: int = 0) -> Operation:
        caller = self.controller(number)
        body = CancelledRequest(fencing_token=token)
        return await self.act(lambda tx: work.end_cancelled(tx, caller, operation_id, body), caller)

    async def heartbeat(self, operation_id: str, token: int, number: int = 0) -> WorkAcknowledged:
        caller = self.controller(number)
        return await self.act(lambda tx: work.heartbeat(tx, caller, operation_id, token, FOR_EVER), caller)

    async def step(self, operation_id: str, token: int, number: int = 0, key: str = "step") -> WorkAcknowledged:
        caller = self.controller(number)
        body = StepReport(fencing_token=token, key=key, title="Step", status=StepStatus.RUNNING)
        return await self.act(lambda tx: work.report_step(tx, caller, operation_id, body), caller)

    async def report(self, member_id: str, claim: Claim, status: MemberStatus, number: int = 0) -> Member:
        caller = self.controller(number)
        body = MemberReport(operation_id=claim.operation.id, fencing_token=claim.fencing_token, status=status)
        return await self.act(lambda tx: reports.report_member(tx, caller, member_id, body), caller)

    async def report_ready(self, claim: Claim, number: int = 0) -> Instance:
        caller, id = self.controller(number), instance_of(claim.operation)
        generation = (await self.instance(id)).generation
        ready = Condition(type="Ready", status=ConditionStatus.TRUE, observed_generation=generation)
        body = InstanceReport(operation_id=claim.operation.id, fencing_token=claim.fencing_token, conditions=[ready])
        return await self.act(lambda tx: reports.report_instance(tx, caller, id, body), caller)

    async def finish(self, claim: Claim, number: int = 0) -> Operation:
        """End it well, with the statuses that its kind leads to."""
        operation = claim.operation
        members = [m for m in await self.members(instance_of(operation)) if m.status != MemberStatus.REMOVED]
        if operation.kind in {"deploy", "start", "restart", "upgrade", "configure"}:
            await self.report_ready(claim, number)
        return await self.complete(operation, claim.fencing_token, number, **outcome(operation, members))

    # What time does

    async def expire_lease(self, operation_id: str) -> None:
        async with self.database.system_transaction() as tx:
            await tx.run(
                """UPDATE operations SET lease_expires_at = now() - interval '1 second'
                   WHERE id = %(id)s AND lease_expires_at IS NOT NULL""",
                id=operation_id,
            )

    async def expire_deadline(self, operation_id: str) -> None:
        async with self.database.system_transaction() as tx:
            await tx.run(
                "UPDATE operations SET deadline = now() - interval '1 second' WHERE id = %(id)s", id=operation_id
            )

    async def sweep(self) -> None:
        async with self.database.system_transaction() as tx:
            await work.fail_overdue(tx)
        async with self.database.system_transaction() as tx:
            await work.notice_expired(tx)


def instance_of(operation: Operation) -> str:
    assert operation.instance_id is not None
    return operation.instance_id


def outcome(operation: Operation, members: list[Member]) -> dict[str, MemberStatus]:
    one = str(operation.member_id)
    match operation.kind:
        case "deploy" | "add" | "resume" | "recover" | "tune":
            return {one: MemberStatus.READY}
        case "drain":
            return {one: MemberStatus.DRAINED}
        case "remove":
            return {one: MemberStatus.REMOVED}
        case "replace":
            return {one: MemberStatus.REMOVED, str(operation.replacement_member_id): MemberStatus.READY}
        case "stop":
            return {member.id: MemberStatus.STOPPED for member in members}
        case "start":
            return {member.id: MemberStatus.READY for member in members}
        case "decommission":
            return {member.id: MemberStatus.REMOVED for member in members}
    return {}
