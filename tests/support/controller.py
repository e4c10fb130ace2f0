"""A whole app controller in a hundred lines: it does every kind of operation in the shortest possible way."""

from collections.abc import Awaitable, Callable
from typing import Any

from gpuaas_contract.base import JsonObject
from gpuaas_contract.instances import Condition, ConditionStatus, Instance, Member, MemberStatus
from gpuaas_contract.operations import Operation, OperationError, StepStatus, WorkAcknowledged
from gpuaas_sdk.client import GpuaasClient


class Work:
    """One claimed operation."""

    def __init__(self, client: GpuaasClient, operation: Operation, fencing_token: int) -> None:
        self.client = client
        self.operation = operation
        self.operation_id = operation.id
        self.fencing_token = fencing_token

    @property
    def instance_id(self) -> str:
        assert self.operation.instance_id is not None
        return self.operation.instance_id

    async def step(self, key: str, status: StepStatus = StepStatus.SUCCEEDED, **more: Any) -> WorkAcknowledged:
        title = key.replace("_", " ").capitalize()
        return await self.client.operations.report_step(
            self.operation_id, self.fencing_token, key=key, title=title, status=status, **more
        )

    async def members(self) -> list[Member]:
        return await self.client.instances.members(self.instance_id, removed=False).all()

    async def report(self, member_id: str | None, status: MemberStatus) -> Member:
        assert member_id is not None
        return await self.client.members.report(member_id, self, status=status, observed_runtime="echo 7")

    async def report_ready(self, ready: bool = True) -> Instance:
        instance = await self.client.instances.get(self.instance_id)
        status = ConditionStatus.TRUE if ready else ConditionStatus.FALSE
        condition = Condition(type="Ready", status=status, observed_generation=instance.generation)
        runtime = instance.versions.expected_runtime
        return await self.client.instances.report(instance.id, self, conditions=[condition], observed_runtime=runtime)

    async def complete(self, **statuses: MemberStatus) -> Operation:
        kind = {"kind": self.operation.kind}
        return await self.client.operations.complete(
            self.operation_id, self.fencing_token, result=kind, member_statuses=statuses
        )

    async def fail(self, code: str = "hoarse", *, retryable: bool = True, usable: bool = False) -> Operation:
        error = OperationError(code=code, detail="the machine is hoarse", retryable=retryable, member_usable=usable)
        return await self.client.operations.fail(self.operation_id, self.fencing_token, error)


class EchoController:
    def __init__(self, client: GpuaasClient, project_id: str, holder: str = "echo-controller") -> None:
        self.client = client
        self.project_id = project_id
        self.holder = holder

    async def claimable(self) -> list[Operation]:
        return await self.client.operations.list(project_id=self.project_id, claimable=True).all()

    async def claim(self, operation_id: str) -> Work:
        claim = await self.client.operations.claim(operation_id, self.holder)
        return Work(self.client, claim.operation, claim.fencing_token)

    async def run_all(self) -> list[str]:
        """Until nothing can be claimed any more; the kinds in the order in which they were done."""
        done = []
        while found := await self.claimable():
            for operation in found:
                await self.run(operation.id)
                done.append(operation.kind)
        return done

    async def run(self, operation_id: str) -> Operation:
        work = await self.claim(operation_id)
        if work.operation.cancel_requested:
            return await self.client.operations.end_cancelled(operation_id, work.fencing_token)
        await work.step("look", StepStatus.RUNNING)
        await work.step("look", evidence={"seen": work.operation.kind})
        handler: Callable[[Work], Awaitable[JsonObject]] = getattr(self, f"_{work.operation.kind}", self._other)
        return await work.complete(**await handler(work))

    async def _other(self, work: Work) -> JsonObject:
        return {}

    async def _deploy(self, work: Work) -> JsonObject:
        await work.report(work.operation.member_id, MemberStatus.READY)
        await work.report_ready()
        return {}

    async def _add(self, work: Work) -> JsonObject:
        await work.report(work.operation.member_id, MemberStatus.CONFIGURING)
        return {str(work.operation.member_id): MemberStatus.READY}

    async def _drain(self, work: Work) -> JsonObject:
        await work.report(work.operation.member_id, MemberStatus.DRAINING)
        return {str(work.operation.member_id): MemberStatus.DRAINED}

    async def _remove(self, work: Work) -> JsonObject:
        await work.report(work.operation.member_id, MemberStatus.REMOVING)
        return {str(work.operation.member_id): MemberStatus.REMOVED}

    _resume = _recover = _add

    async def _replace(self, work: Work) -> JsonObject:
        old, new = work.operation.member_id, work.operation.replacement_member_id
        await work.report(old, MemberStatus.DRAINING)
        await work.report(new, MemberStatus.READY)
        return {str(old): MemberStatus.REMOVED}

    async def _start(self, work: Work) -> JsonObject:
        await work.report_ready()
        return {member.id: MemberStatus.READY for member in await work.members()}

    _restart = _upgrade = _configure = _start

    async def _stop(self, work: Work) -> JsonObject:
        await work.report_ready(ready=False)
        return {member.id: MemberStatus.STOPPED for member in await work.members()}

    async def _decommission(self, work: Work) -> JsonObject:
        return {member.id: MemberStatus.REMOVED for member in await work.members()}
