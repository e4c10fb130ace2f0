"""The platform as the shipped reconcilers see it, in memory: one instance, its members, and machines that a test gives.

An operation runs as the controller would run it, with the real context of the SDK. What the platform itself would do
(leases, preconditions) is not here.
"""

import asyncio
import os
import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Generic, TypeVar, cast

from gpuaas_contract.base import JsonObject
from gpuaas_contract.instances import (
    AccessNote,
    Condition,
    DesiredState,
    Instance,
    InstanceStatus,
    Member,
    MemberStatus,
    Versions,
)
from gpuaas_contract.operations import Claim, Lease, Operation, OperationState, Step, StepStatus, WorkAcknowledged
from gpuaas_contract.people import Person
from gpuaas_contract.problems import Code, Problem
from gpuaas_sdk import GpuaasClient, Machine, MachineUnreachableError, OperationContext, RetryLater
from gpuaas_sdk.errors import InvalidStateError
from gpuaas_sdk.runtime.secrets import LeaseSecrets
from gpuaas_sdk.secret_value import SecretValue
from slurm_app.bundle import ARTIFACT
from slurm_app.controller import HANDLERS
from slurm_app.store import Store

INSTANCE, PROJECT = "ins_1", "prj_1"
CONTROLLER, WORKER = "controller", "worker"
TRIES = 3


class MemoryPlatform:
    """Stands for the client too, as far as the reconcilers use it."""

    def __init__(self, directory: Path, digest: str, *, project: str = "proj", **inputs: Any) -> None:
        self._database = directory / f"{os.urandom(8).hex()}.db"
        self._digest = digest
        self.keys = [os.urandom(128)]
        """The versions of the munge key, the oldest first; the platform has the two newest."""
        self._project = project
        self._machines: dict[str, Machine] = {}
        self._operations: dict[str, Operation] = {}
        self.store = Store(f"sqlite:///{self._database}")
        self.found: dict[str, Member] = {}
        """Members by their id."""
        now = datetime.now(UTC)
        self.instance = Instance(
            id=INSTANCE,
            revision=1,
            created_at=now,
            updated_at=now,
            project_id=PROJECT,
            app_slug="slurm",
            app_version_id="apv_1",
            name="demo",
            inputs={"partition": "main", **inputs},
            placement_intent=[],
            desired_state=DesiredState.RUNNING,
            generation=1,
            status=InstanceStatus.DEPLOYING,
            versions=Versions(app="1.0.0", expected_runtime="22.05"),
            correlation_id="cor_1",
        )
        self.instances = _Instances(self)
        self.members = _Members(self)
        self.operations = _Operations(self)
        self.app_versions = _Answer(
            SimpleNamespace(manifest=SimpleNamespace(artifacts=[SimpleNamespace(name=ARTIFACT, digest=digest)]))
        )
        self.projects = _Answer(SimpleNamespace(id=PROJECT, name=project))
        self.allocations = _Answer(
            SimpleNamespace(name="head", shape=SimpleNamespace(external=None, cpus=2, memory_mib=2048))
        )

    def copy(self) -> "MemoryPlatform":
        """As it is now, with a database of its own: to go back to, together with the machines."""
        twin = MemoryPlatform(self._database.parent, self._digest, project=self._project)
        twin.keys, twin._machines, twin._operations = [*self.keys], dict(self._machines), dict(self._operations)
        twin.instance, twin.found = self.instance, dict(self.found)
        twin.store.close()
        with sqlite3.connect(self._database) as ours, sqlite3.connect(twin._database) as its:
            ours.backup(its)
        return twin

    def place(self, component: str, machine: Machine) -> Member:
        """A new member, which nothing was done for yet."""
        self._machines[machine.allocation_id] = machine
        now = datetime.now(UTC)
        member = Member(
            id=f"mem_{len(self.found) + 1}",
            revision=1,
            created_at=now,
            updated_at=now,
            instance_id=INSTANCE,
            component_key=component,
            allocation_id=machine.allocation_id,
            status=MemberStatus.PENDING,
            correlation_id="cor_1",
        )
        self.found[member.id] = member
        return member

    def reach(self, machine: Machine) -> None:
        """Over this object from now on."""
        self._machines[machine.allocation_id] = machine

    def machine(self, allocation_id: str) -> Machine:
        if allocation_id not in self._machines:
            raise MachineUnreachableError(f"{allocation_id} does not answer")
        return self._machines[allocation_id]

    def member_on(self, machine: Machine, component: str = WORKER) -> Member:
        (found,) = [
            member
            for member in self.found.values()
            if (member.allocation_id, member.component_key) == (machine.allocation_id, component)
            and member.status != MemberStatus.REMOVED
        ]
        return found

    async def deploy(self) -> Operation:
        """The deploy, and at the same time the addition of each worker that is not there yet."""
        waiting = [
            member
            for member in self.found.values()
            if member.component_key == WORKER and member.status not in {MemberStatus.READY, MemberStatus.REMOVED}
        ]
        try:
            async with asyncio.TaskGroup() as group:
                deploy = group.create_task(self.run("deploy"))
                for member in waiting:
                    group.create_task(self.run("add", member))
        except ExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return deploy.result()

    async def run(
        self,
        kind: str,
        member: Member | None = None,
        wanted: JsonObject | None = None,
        *,
        replacement: Member | None = None,
        outcome_lost: bool = False,
    ) -> Operation:
        """By the app's reconciler for it. `outcome_lost`: its controller died before it could say how it ended."""
        now = datetime.now(UTC)
        operation = Operation(
            id=f"op_{len(self._operations) + 1}",
            revision=1,
            created_at=now,
            updated_at=now,
            instance_id=INSTANCE,
            member_id=member.id if member else None,
            replacement_member_id=replacement.id if replacement else None,
            project_id=PROJECT,
            app_slug="slurm",
            kind=kind,
            input=wanted or {},
            state=OperationState.RUNNING,
            attempt=1,
            deadline=now + timedelta(hours=1),
            requested_by="usr_1",
            correlation_id="cor_1",
        )
        self._operations[operation.id] = operation
        for each in (member, replacement):
            if each is not None:
                self.change_member(each.id, last_operation_id=operation.id)
        context, result = await self._try(operation)
        if outcome_lost:
            return self._operations[operation.id].model_copy(update={"result": result})
        for member_id, status in context.statuses_on_success.items():
            self.change_member(member_id, status=status)
        return self.change_operation(operation.id, state=OperationState.SUCCEEDED, result=result)

    async def _try(self, operation: Operation) -> tuple[OperationContext, JsonObject]:
        """Again where a machine did not answer, as a controller does."""
        for attempt in range(1, TRIES + 1):
            claimed = self.change_operation(operation.id, attempt=attempt)
            claim = Claim(operation=claimed, fencing_token=attempt, lease_seconds=15)
            context = OperationContext(cast(GpuaasClient, self), claim, _Machines(self))
            try:
                return context, await HANDLERS[operation.kind](context, self.store)
            except (MachineUnreachableError, RetryLater):
                if attempt == TRIES:
                    self.change_operation(operation.id, state=OperationState.FAILED)
                    raise
            except BaseException:
                self.change_operation(operation.id, state=OperationState.FAILED)
                raise
        raise AssertionError("the last try returns or raises")

    @property
    def last(self) -> Operation:
        return list(self._operations.values())[-1]

    def secret(self, version: int | None = None) -> SecretValue:
        number = len(self.keys) if version is None else version
        if number < len(self.keys) - 1:
            problem = Problem(
                type="about:blank",
                title="Invalid state",
                status=409,
                detail=f"there is no version {number}",
                code=Code.INVALID_STATE,
                correlation_id="cor_1",
            )
            raise InvalidStateError(problem)
        return SecretValue("sec_1", number, self.keys[number - 1])

    def change_member(self, member_id: str, **changes: Any) -> Member:
        self.found[member_id] = changed = self.found[member_id].model_copy(update=changes)
        return changed

    def change_operation(self, operation_id: str, **changes: Any) -> Operation:
        self._operations[operation_id] = changed = self._operations[operation_id].model_copy(update=changes)
        return changed

    @property
    def known_operations(self) -> list[Operation]:
        return [*self._operations.values()]

    def operation(self, operation_id: str) -> Operation:
        return self._operations[operation_id]


def evidence_of(operation: Operation) -> dict[str, JsonObject]:
    """By the key of the step."""
    return {step.key: step.evidence for step in operation.steps}


def _merged(old: list[Condition], new: Sequence[Condition] | None) -> list[Condition]:
    said = {condition.type for condition in new or ()}
    return [*(condition for condition in old if condition.type not in said), *(new or ())]


class _Answer:
    """The same to everybody who asks."""

    def __init__(self, answer: object) -> None:
        self._answer = answer

    async def get(self, *_: str) -> object:
        return self._answer


Item = TypeVar("Item")


class _All(Generic[Item]):
    def __init__(self, items: list[Item]) -> None:
        self._items = items

    async def all(self) -> list[Item]:
        return self._items


class _Instances:
    def __init__(self, platform: MemoryPlatform) -> None:
        self._platform = platform

    async def get(self, _: str) -> Instance:
        return self._platform.instance

    def members(self, _: str) -> _All[Member]:
        return _All(list(self._platform.found.values()))

    def people(self, _: str) -> _All[Person]:
        return _All([])

    async def report(
        self,
        _: str,
        lease: OperationContext,
        *,
        conditions: Sequence[Condition] | None = None,
        access_notes: Sequence[AccessNote] | None = None,
        observed_runtime: str | None = None,
    ) -> Instance:
        platform = self._platform
        update: dict[str, Any] = {"conditions": _merged(platform.instance.conditions, conditions)}
        if access_notes is not None:
            update["access_notes"] = [*access_notes]
        platform.instance = platform.instance.model_copy(update=update)
        return platform.instance


class _Members:
    def __init__(self, platform: MemoryPlatform) -> None:
        self._platform = platform

    async def get(self, member_id: str) -> Member:
        return self._platform.found[member_id]

    async def report(
        self,
        member_id: str,
        lease: OperationContext,
        *,
        status: MemberStatus | None = None,
        conditions: Sequence[Condition] | None = None,
        adapter_detail: JsonObject | None = None,
        observed_runtime: str | None = None,
    ) -> Member:
        changes = {"status": status, "adapter_detail": adapter_detail, "observed_runtime": observed_runtime}
        said: dict[str, Any] = {key: value for key, value in changes.items() if value is not None}
        said["conditions"] = _merged(self._platform.found[member_id].conditions, conditions)
        return self._platform.change_member(member_id, **said)


class _Operations:
    def __init__(self, platform: MemoryPlatform) -> None:
        self._platform = platform

    def list(self, *, instance_id: str) -> "_All[Operation]":
        return _All(self._platform.known_operations)

    async def get(self, operation_id: str) -> Operation:
        return self._platform.operation(operation_id)

    async def report_step(
        self,
        operation_id: str,
        token: int,
        *,
        key: str,
        title: str,
        status: StepStatus,
        message: str,
        evidence: JsonObject,
        commands: Sequence[Any],
    ) -> WorkAcknowledged:
        operation = self._platform.operation(operation_id)
        step = Step(
            key=key,
            title=title,
            status=status,
            message=message,
            evidence=evidence,
            commands=[*commands],
            attempt=operation.attempt,
            started_at=datetime.now(UTC),
        )
        others = [known for known in operation.steps if known.key != key]
        changed = self._platform.change_operation(operation_id, steps=[*others, step])
        lease = Lease(holder="test", expires_at=changed.deadline)
        return WorkAcknowledged(id=changed.id, revision=changed.revision, state=changed.state, lease=lease)


class _Machines:
    """The machines of one operation, and the one secret that the reconcilers ask for."""

    def __init__(self, platform: MemoryPlatform) -> None:
        self._platform = platform

    async def prepare(self) -> None:
        pass

    def machine(self, allocation_id: str) -> Machine:
        return self._platform.machine(allocation_id)

    async def close(self) -> None:
        pass

    @property
    def secrets(self) -> LeaseSecrets:
        async def secret(*_: object, version: int | None = None) -> SecretValue:
            return self._platform.secret(version)

        return cast(LeaseSecrets, SimpleNamespace(secret=secret))
