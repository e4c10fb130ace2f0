"""External machines: no node, no agent, no task. They are there at once, and gone at once."""

from gpuaas_contract.allocations import AllocationStatus
from gpuaas_contract.external import ExternalMachine
from gpuaas_contract.usage import UsageKind
from gpuaas_platform.services.timeline import record
from gpuaas_platform.storage import allocations as store
from gpuaas_platform.storage import usage as usage_store
from gpuaas_platform.storage.database import Row, Transaction


async def activate(tx: Transaction, row: Row) -> None:
    machine = ExternalMachine.model_validate(row["shape"]["external"])
    active = await store.set_status(tx, row["id"], AllocationStatus.ACTIVE)
    await usage_store.begin(tx, UsageKind.OCCUPIED, active)
    await usage_store.begin(tx, UsageKind.CHARGED, active)
    where = f"{machine.login}@{machine.address} port {machine.port}"
    await record(tx, active, "active", f"an external machine, {where}; nothing was put on it and nobody was asked")


async def release(tx: Transaction, row: Row) -> None:
    released = await store.set_status(tx, row["id"], AllocationStatus.RELEASED)
    await usage_store.end(tx, UsageKind.OCCUPIED, row["id"])
    message = "it is not charged any more; the platform had put nothing on the machine, so nothing was removed"
    await record(tx, released, "released", message)
