"""External machines: no node, no agent, no task. They are there at once, and gone at once."""

from gpuaas_contract.allocations import AllocationStatus
from gpuaas_contract.events import AllocationEvent
from gpuaas_contract.external import ExternalMachine
from gpuaas_contract.problems import Code, FieldError
from gpuaas_contract.usage import UsageKind
from gpuaas_platform.allocations.records import AllocationRecord
from gpuaas_platform.allocations.storage import allocations as store
from gpuaas_platform.allocations.storage import usage as usage_store
from gpuaas_platform.allocations.storage.allocations import record
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.vault.service.credentials import require_active
from gpuaas_platform.vault.storage import credentials as credential_store


async def require_credential(tx: Transaction, project_id: str, machine: ExternalMachine) -> None:
    """One of the project's own that can be delivered; whether the machine takes it is seen when it is used."""
    credential = await credential_store.get(tx, machine.credential_id)
    if credential is None or credential.project_id != project_id:
        detail = f"the project has no access credential {machine.credential_id}"
        errors = [FieldError(pointer="/shape/external/credential_id", detail=detail)]
        raise Refusal(Code.INVALID_REQUEST, detail, errors=errors)
    require_active(credential)


async def activate(tx: Transaction, row: AllocationRecord) -> None:
    machine = row.shape.external
    assert machine is not None, "only external machines are activated at once"
    active = await store.set_status(tx, row.id, AllocationStatus.ACTIVE)
    await usage_store.begin(tx, UsageKind.OCCUPIED, active)
    await usage_store.begin(tx, UsageKind.CHARGED, active)
    where = f"{machine.login}@{machine.address} port {machine.port}"
    await record(
        tx, active, AllocationEvent.ACTIVE, f"an external machine, {where}; nothing was put on it and nobody was asked"
    )


async def release(tx: Transaction, row: AllocationRecord) -> None:
    released = await store.set_status(tx, row.id, AllocationStatus.RELEASED)
    await usage_store.end(tx, UsageKind.OCCUPIED, row.id)
    message = "it is not charged any more; the platform had put nothing on the machine, so nothing was removed"
    await record(tx, released, AllocationEvent.RELEASED, message)
