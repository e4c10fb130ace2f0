"""Access to machines, and artifacts brought to them."""

from collections.abc import Sequence

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import load_ssh_public_key

from gpuaas_contract import ids
from gpuaas_contract.access import (
    OPERATOR_LOGIN,
    PERSON_LOGIN,
    AccessGrant,
    AccessRequest,
    DirectAccess,
    MachineAddress,
    OperationAccessRequest,
)
from gpuaas_contract.agent_link import DeliverArtifact, HostCertificate, HostCertificateRequest
from gpuaas_contract.allocations import AllocationStatus, ShapeKind
from gpuaas_contract.artifacts import Delivery, DeliveryRequest, DeliveryStatus
from gpuaas_contract.problems import Code, FieldError
from gpuaas_platform.adapters.openbao import OpenBao
from gpuaas_platform.domain.errors import Refusal, not_found
from gpuaas_platform.domain.policy import Caller, Permission, Scope
from gpuaas_platform.services import artifacts, operations, shapes
from gpuaas_platform.services.allocations import audit, require_allocation
from gpuaas_platform.services.catalogue import manifest_of
from gpuaas_platform.services.placement import certificate_principal
from gpuaas_platform.storage import access as store
from gpuaas_platform.storage import allocations as allocation_store
from gpuaas_platform.storage import catalogue as catalogue_store
from gpuaas_platform.storage import instances as instance_store
from gpuaas_platform.storage import nodes as node_store
from gpuaas_platform.storage import operations as operation_store
from gpuaas_platform.storage.database import Database, Row, Transaction

CERTIFICATE_SECONDS = 300


class AccessService:
    """Signing happens in OpenBao, outside of transactions: the grant first, then its certificate."""

    def __init__(self, database: Database, openbao: OpenBao) -> None:
        self._database = database
        self._openbao = openbao
        self._authorities: dict[str, str] = {}

    async def _authority(self, owner_id: str) -> str:
        """The public key of the SSH authority of a project or tenant, made on first use."""
        if owner_id not in self._authorities:
            async with self._database.exclusively(f"ssh-authority/{owner_id}"):
                self._authorities[owner_id] = await self._openbao.ensure_authority(owner_id)
        return self._authorities[owner_id]

    async def grant_person(
        self, caller: Caller, correlation_id: str, allocation_id: str, body: AccessRequest
    ) -> AccessGrant:
        async with self._database.transaction(caller.id, correlation_id) as tx:
            row = await require_allocation(tx, caller, allocation_id, Permission.ALLOCATION_ACCESS)
            shapes.require_support(row, "access")
            _require_active(row)
            check_ssh_key(body.public_key)
            grant = await store.insert(
                tx,
                ids.new_id(ids.ACCESS_GRANT),
                row["project_id"],
                row["owner_id"],
                [allocation_id],
                PERSON_LOGIN,
                CERTIFICATE_SECONDS,
            )
            await audit(tx, "access.grant", row, {"grant": grant["id"]})
        return await self._certify(grant, [row], body.public_key, f"{caller.name}/{correlation_id}")

    async def grant_operation(
        self, caller: Caller, correlation_id: str, operation_id: str, body: OperationAccessRequest
    ) -> AccessGrant:
        async with self._database.transaction(caller.id, correlation_id) as tx:
            operation = await operations.require_lease(tx, caller, operation_id, body.fencing_token)
            check_ssh_key(body.public_key)
            machine_ids = await list_machines(tx, operation)
            machines = [row for id in machine_ids if (row := await allocation_store.get(tx, id)) is not None]
            active = [row for row in machines if row["status"] == AllocationStatus.ACTIVE]
            grant = await store.insert(
                tx,
                ids.new_id(ids.ACCESS_GRANT),
                operation["project_id"],
                operation["project_id"],
                [row["id"] for row in active],
                OPERATOR_LOGIN,
                CERTIFICATE_SECONDS,
                operation_id,
            )
            detail = {"grant": grant["id"], "machines": grant["allocation_ids"]}
            await tx.audit("access.grant", operation_id, project_id=operation["project_id"], detail=detail)
        key_id = f"{operation_id}/{body.fencing_token}/{operation['correlation_id']}"
        return await self._certify(grant, active, body.public_key, key_id)

    async def _certify(self, grant: Row, machines: Sequence[Row], public_key: str, key_id: str) -> AccessGrant:
        owner_id = grant["owner_id"]
        authority = await self._authority(owner_id)
        certified = [row for row in machines if shapes.kind_of(row) != ShapeKind.EXTERNAL]
        principals = [certificate_principal(grant["login"], row["id"]) for row in certified]
        certificate = ""
        if principals:
            certificate = await self._openbao.sign_user_key(
                owner_id, public_key, principals, CERTIFICATE_SECONDS, key_id
            )
        return AccessGrant(
            id=grant["id"],
            login=grant["login"],
            certificate=certificate,
            host_authority=authority,
            machines=[
                MachineAddress(
                    allocation_id=row["id"],
                    hostname=row["hostname"],
                    address=row["address"],
                    host_principal=row["id"],
                    direct=_direct(row),
                )
                for row in machines
            ],
            expires_at=grant["expires_at"],
        )

    async def certify_host(self, node: Caller, correlation_id: str, body: HostCertificateRequest) -> HostCertificate:
        async with self._database.transaction(node.id, correlation_id) as tx:
            row = await allocation_store.get(tx, body.allocation_id)
            if row is None or row["node_id"] != node.id or row["status"] == AllocationStatus.RELEASED:
                raise not_found("allocation", body.allocation_id)
            check_ssh_key(body.public_key)
            await audit(tx, "access.certify_host", row)
        authority = await self._authority(row["owner_id"])
        return HostCertificate(
            certificate=await self._openbao.sign_host_key(row["owner_id"], body.public_key, row["id"]),
            user_authority=authority,
        )


def _direct(row: Row) -> DirectAccess | None:
    external = row["shape"].get("external")
    return None if external is None else DirectAccess.model_validate(external)


def check_ssh_key(public_key: str) -> None:
    """Before anything is written: the authority would refuse it only after the grant was made."""
    try:
        key = load_ssh_public_key(public_key.encode())
    except (ValueError, UnsupportedAlgorithm):
        key = None
    if not isinstance(key, Ed25519PublicKey):
        detail = "public_key must be an ed25519 key in OpenSSH form"
        raise Refusal(Code.INVALID_REQUEST, detail, errors=[FieldError(pointer="/public_key", detail=detail)])


def _require_active(row: Row) -> None:
    if row["status"] != AllocationStatus.ACTIVE:
        raise Refusal(Code.INVALID_STATE, f"allocation {row['name']} is {row['status']}, not active")


async def list_machines(tx: Transaction, operation: Row) -> list[str]:
    instance = await instance_store.get(tx, operation["instance_id"])
    assert instance is not None
    return await operation_store.list_machine_ids(tx, operation, manifest_of(instance).primary.key)


async def open_stream(tx: Transaction, caller: Caller, grant_id: str, allocation_id: str) -> tuple[Row, Row]:
    """The grant and the machine that a stream is asked for, where the caller may have it."""
    grant = await store.get(tx, grant_id)
    if grant is None or grant["principal_id"] != caller.id or allocation_id not in grant["allocation_ids"]:
        raise not_found("access grant", grant_id)
    if not grant["open"] or await store.list_ended(tx, [grant_id]):
        raise Refusal(Code.INVALID_STATE, "this access grant has ended; ask for a new one")
    machine = await allocation_store.get(tx, allocation_id)
    assert machine is not None
    shapes.require_support(machine, "access")
    _require_active(machine)
    await audit(tx, "access.open_stream", machine, {"grant": grant_id})
    return grant, machine


async def request_delivery(tx: Transaction, caller: Caller, operation_id: str, body: DeliveryRequest) -> Delivery:
    operation = await operations.require_lease(tx, caller, operation_id, body.fencing_token)
    if body.allocation_id not in await list_machines(tx, operation):
        raise not_found("allocation", body.allocation_id)
    machine = await allocation_store.get(tx, body.allocation_id)
    assert machine is not None
    shapes.require_support(machine, "delivery")
    _require_active(machine)
    artifact = await artifacts.require_promoted(tx, operation["app_slug"], operation["project_id"], body.digest)
    spec = DeliverArtifact(
        allocation_id=body.allocation_id,
        digest=artifact["content_digest"],
        size=artifact["size"],
        repository=artifact["repository"],
    )
    task_id = ids.new_id(ids.TASK)
    await node_store.insert_task(
        tx,
        task_id,
        machine["node_id"],
        body.allocation_id,
        spec.model_dump(mode="json"),
        operation["correlation_id"],
    )
    row = await catalogue_store.insert_delivery(
        tx, ids.new_id(ids.DELIVERY), operation_id, body.allocation_id, body.digest, task_id
    )
    await tx.changed(
        "delivery", row, "requested", project_id=operation["project_id"], instance_id=operation["instance_id"]
    )
    await tx.audit(
        "artifact.deliver", body.allocation_id, project_id=operation["project_id"], detail={"digest": body.digest}
    )
    return Delivery.model_validate(row)


async def get_delivery(tx: Transaction, caller: Caller, delivery_id: str) -> Delivery:
    row = await catalogue_store.get_delivery(tx, delivery_id)
    if row is None:
        raise not_found("delivery", delivery_id)
    scope = Scope(tenant_id=row["tenant_id"], project_id=row["project_id"], app_slug=row["app_slug"])
    caller.require(Permission.OPERATION_WORK, scope, "delivery", delivery_id)
    return Delivery.model_validate(row)


async def artifact_delivered(tx: Transaction, task_id: str, ok: bool, path: str | None, message: str) -> None:
    status = DeliveryStatus.DELIVERED if ok else DeliveryStatus.FAILED
    row = await catalogue_store.finish_delivery(tx, task_id, status, path, "" if ok else message)
    if row is None:
        return
    operation = await operation_store.get(tx, row["operation_id"])
    assert operation is not None
    await tx.changed(
        "delivery", row, status.value, project_id=operation["project_id"], instance_id=operation["instance_id"]
    )
