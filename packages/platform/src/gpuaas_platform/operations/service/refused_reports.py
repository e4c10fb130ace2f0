"""Refused reports of controllers, told to whoever looks after the instance: nothing changed, and why."""

from gpuaas_contract.events import InstanceEvent, MemberEvent, OperationEvent
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.identity.rules.policy import Caller, Scope
from gpuaas_platform.instances.records import InstanceView, MemberView
from gpuaas_platform.instances.storage import instances as instance_store
from gpuaas_platform.operations.records import OperationView
from gpuaas_platform.operations.service.operations import changed
from gpuaas_platform.operations.storage import operations as store

LONGEST = 500


async def tell(
    tx: Transaction,
    caller: Caller,
    refusal: Refusal,
    *,
    operation_id: str | None,
    member_id: str | None,
    instance_id: str | None,
) -> None:
    """Tell it on the operation, or on what the report was about where it named none. Strangers leave no words here."""
    message = f"{caller.name}: {refusal.detail} ({refusal.code.value})"[:LONGEST]
    operation = None if operation_id is None else await store.get(tx, operation_id)
    if operation is not None:
        if _knows(caller, operation):
            await changed(tx, operation, OperationEvent.REPORT_REFUSED, message)
        return
    if member_id is not None:
        member = await instance_store.get_member(tx, member_id)
        if member is not None and _knows(caller, member):
            scope = {"project_id": member.project_id, "instance_id": member.instance_id}
            await tx.changed(MemberEvent.REPORT_REFUSED, member, message=message, **scope)
    elif instance_id is not None:
        instance = await instance_store.get(tx, instance_id)
        if instance is not None and _knows(caller, instance):
            scope = {"project_id": instance.project_id, "instance_id": instance.id}
            await tx.changed(InstanceEvent.REPORT_REFUSED, instance, message=message, **scope)


def _knows(caller: Caller, row: OperationView | MemberView | InstanceView) -> bool:
    """Ask for the project only: a controller that reports to another app's operation is worth telling."""
    return caller.sees(Scope(tenant_id=row.tenant_id, project_id=row.project_id))
