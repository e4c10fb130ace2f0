"""How a reconcile lease ends: given back, or with its instance."""

from gpuaas_contract.events import ReconcileLeaseEvent
from gpuaas_platform.access.storage import access as access_store
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.records import Subject
from gpuaas_platform.instances.records import InstanceRecord, ReconcileLeaseRecord
from gpuaas_platform.instances.storage import reconcile as store


async def tell(
    tx: Transaction, instance: InstanceRecord, lease: ReconcileLeaseRecord, event: ReconcileLeaseEvent, message: str
) -> None:
    # Named by its instance; its token grows with each holder, so it serves as the revision.
    row = Subject(instance.id, lease.fencing_token)
    scope = {"project_id": instance.project_id, "instance_id": instance.id}
    await tx.changed(event, row, message=message, **scope)


async def end_lease(tx: Transaction, instance: InstanceRecord, message: str) -> None:
    """End the lease, and the access that it gave. The caller holds the lock of the instance."""
    row = await store.lock(tx, instance.id)
    if row is None:
        return
    await access_store.end_of_reconcile(tx, instance.id)
    await store.delete(tx, instance.id)
    await tell(tx, instance, row, ReconcileLeaseEvent.ENDED, message)
    detail = {"holder": row.holder, "fencing_token": row.fencing_token}
    await tx.audit("reconcile_lease.end", instance.id, project_id=instance.project_id, detail=detail)
