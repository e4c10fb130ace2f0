"""Artifacts brought to the machines of an operation."""

from gpuaas_contract import ids
from gpuaas_contract.agent_link import DeliverArtifact
from gpuaas_contract.artifacts import Delivery, DeliveryRequest, DeliverySource, DeliveryStatus
from gpuaas_contract.events import DeliveryEvent
from gpuaas_contract.operations import TEARDOWN_KINDS
from gpuaas_platform.access.service.streams import require_active
from gpuaas_platform.allocations.records import AllocationRecord
from gpuaas_platform.allocations.rules import shapes
from gpuaas_platform.allocations.storage import allocations as allocation_store
from gpuaas_platform.artifacts.records import ArtifactRecord
from gpuaas_platform.artifacts.service import artifacts
from gpuaas_platform.catalogue.service.entitlements import require_entitled
from gpuaas_platform.catalogue.storage import versions as catalogue_store
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import not_found
from gpuaas_platform.core.records import to_wire
from gpuaas_platform.identity.rules.policy import Caller, Permission, Scope
from gpuaas_platform.instances.service.preflights import refuse_in_preflight
from gpuaas_platform.nodes import storage as node_store
from gpuaas_platform.operations.service import operations
from gpuaas_platform.operations.service.access import list_machines
from gpuaas_platform.operations.storage import operations as operation_store


async def request_delivery(tx: Transaction, caller: Caller, operation_id: str, body: DeliveryRequest) -> Delivery:
    operation = await operations.require_lease(tx, caller, operation_id, body.fencing_token)
    refuse_in_preflight(operation, "artifacts")
    if body.allocation_id not in await list_machines(tx, operation):
        raise not_found("allocation", body.allocation_id)
    machine = await allocation_store.get(tx, body.allocation_id)
    assert machine is not None
    require_active(machine)
    artifact = await artifacts.require_promoted(tx, operation.app_slug, operation.project_id, body.digest)
    if artifact.app_slug is not None and operation.kind not in TEARDOWN_KINDS:
        await require_entitled(tx, caller, operation.tenant_id, artifact.app_slug)
    by_agent = shapes.supports(machine, "delivery")
    task_id = await _ask_agent(tx, machine, artifact, operation.correlation_id) if by_agent else None
    status = DeliveryStatus.PENDING if by_agent else DeliveryStatus.TO_COPY
    row = await catalogue_store.insert_delivery(
        tx, ids.new_id(ids.DELIVERY), operation_id, body.allocation_id, body.digest, task_id, status
    )
    await tx.changed(DeliveryEvent.REQUESTED, row, project_id=operation.project_id, instance_id=operation.instance_id)
    await tx.audit(
        "artifact.deliver", body.allocation_id, project_id=operation.project_id, detail={"digest": body.digest}
    )
    source = DeliverySource(repository=artifact.repository, digest=artifact.content_digest)
    return to_wire(Delivery, row, source=None if by_agent else source)


async def _ask_agent(tx: Transaction, machine: AllocationRecord, artifact: ArtifactRecord, correlation_id: str) -> str:
    spec = DeliverArtifact(
        allocation_id=machine.id,
        digest=artifact.content_digest,
        size=artifact.size,
        repository=artifact.repository,
        media_type=artifact.media_type,
    )
    assert machine.node_id is not None, "a machine with an agent is on a node"
    return await node_store.insert_task(
        tx, machine.node_id, spec, allocation_id=machine.id, correlation_id=correlation_id
    )


async def get_delivery(tx: Transaction, caller: Caller, delivery_id: str) -> Delivery:
    row = await catalogue_store.get_delivery(tx, delivery_id)
    if row is None:
        raise not_found("delivery", delivery_id)
    scope = Scope(tenant_id=row.tenant_id, project_id=row.project_id, app_slug=row.app_slug)
    caller.require(Permission.OPERATION_WORK, scope, "delivery", delivery_id)
    await operations.require_operation(tx, caller, row.operation_id, Permission.OPERATION_WORK)
    return to_wire(Delivery, row)


async def artifact_delivered(tx: Transaction, task_id: str, ok: bool, path: str | None, message: str) -> None:
    status = DeliveryStatus.DELIVERED if ok else DeliveryStatus.FAILED
    row = await catalogue_store.finish_delivery(tx, task_id, status, path, "" if ok else message)
    if row is None:
        return
    operation = await operation_store.get(tx, row.operation_id)
    assert operation is not None
    await tx.changed(DeliveryEvent(status), row, project_id=operation.project_id, instance_id=operation.instance_id)


async def find_repository(tx: Transaction, digest: str, node_id: str) -> str | None:
    """Find the repository that an open delivery to this node is to be read from."""
    return await catalogue_store.find_delivered_repository(tx, digest, node_id)
