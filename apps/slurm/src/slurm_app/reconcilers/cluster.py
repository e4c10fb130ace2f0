"""The cluster that an operation is about, as the platform describes it, and the scope that phases work on."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from gpuaas_contract.access import PERSON_LOGIN
from gpuaas_contract.base import JsonObject
from gpuaas_contract.instances import Instance, Member, MemberStatus
from gpuaas_sdk import (
    LeaseLostError,
    MachineUnreachableError,
    OperationContext,
    OperationFailed,
    RetryLater,
    TransportError,
    UnavailableError,
)
from slurm_app import names
from slurm_app.errors import SlurmAppError
from slurm_app.scope import Scope

CONTROLLER, WORKER = "controller", "worker"
PACKAGES_ARTIFACT = "packages"
DETAIL_LIMIT = 2_000


@dataclass(frozen=True, slots=True)
class Cluster:
    """Read anew for every operation: nothing is remembered between them."""

    instance: Instance
    controller: Member
    workers: tuple[Member, ...]
    account: str
    bundle_digest: str

    @classmethod
    async def read(cls, operation: OperationContext) -> "Cluster":
        instance = await operation.instance()
        version = await operation.app_version()
        project = await operation.client.projects.get(instance.project_id)
        live = [member for member in await operation.members() if member.status != MemberStatus.REMOVED]
        controllers = [member for member in live if member.component_key == CONTROLLER]
        digests = [slot.digest for slot in version.manifest.artifacts if slot.name == PACKAGES_ARTIFACT]
        if len(controllers) != 1 or len(digests) != 1 or digests[0] is None:
            raise OperationFailed("instance_incomplete", "the instance has no controller, or its app no packages")
        workers = tuple(member for member in live if member.component_key == WORKER)
        return cls(instance, controllers[0], workers, project.name, digests[0])

    def scope(self, operation: OperationContext, workers: Iterable[Member]) -> Scope:
        chosen = list(workers)
        inputs = self.instance.inputs
        try:
            return self._scope(operation, chosen, inputs)
        except SlurmAppError as error:
            raise OperationFailed(error.code, error.detail, retryable=error.retryable) from error

    def _scope(self, operation: OperationContext, chosen: list[Member], inputs: JsonObject) -> Scope:
        return Scope(
            cluster_name=inputs.get("cluster_name") or names.cluster_name_for(self.instance.name),
            partition=inputs["partition"],
            account=self.account,
            controller=operation.machine(self.controller.allocation_id),
            workers=tuple(operation.machine(worker.allocation_id) for worker in chosen),
            bundle_digest=self.bundle_digest,
            users=(PERSON_LOGIN,),
            node_comments={worker.allocation_id: worker.id for worker in chosen},
        )


@asynccontextmanager
async def member_in_work(operation: OperationContext, member: Member) -> AsyncIterator[None]:
    """The member shows that it is being worked on, and that it failed where the operation does."""
    await operation.report_member(member.id, status=MemberStatus.CONFIGURING)
    try:
        yield
    except (RetryLater, MachineUnreachableError, LeaseLostError, TransportError, UnavailableError):
        # It comes back by itself, or belongs to somebody else by now.
        raise
    except Exception as error:
        detail = {"error": str(error)[:DETAIL_LIMIT], "operation_id": operation.operation_id}
        await operation.report_member(member.id, status=MemberStatus.FAILED, adapter_detail=detail)
        raise
