"""Refused reports of controllers, told to whoever looks after the instance: nothing changed, and why."""

from gpuaas_platform.core.database import Row, Transaction
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.identity.rules.policy import Caller, Scope
from gpuaas_platform.instances.storage import instances as instance_store
from gpuaas_platform.operations.service.operations import changed
from gpuaas_platform.operations.storage import operations as store

EVENT = "report_refused"
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
    """On the operation, or on what the report was about where it named none. Strangers leave no words here."""
    message = f"{caller.name}: {refusal.detail} ({refusal.code.value})"[:LONGEST]
    operation = None if operation_id is None else await store.get(tx, operation_id)
    if operation is not None:
        if _knows(caller, operation):
            await changed(tx, operation, EVENT, message)
        return
    noun, row = "member", None
    if member_id is not None:
        row = await instance_store.get_member(tx, member_id)
    elif instance_id is not None:
        noun, row = "instance", await instance_store.get(tx, instance_id)
    if row is not None and _knows(caller, row):
        instance = row["instance_id"] if noun == "member" else row["id"]
        await tx.changed(noun, row, EVENT, message=message, project_id=row["project_id"], instance_id=instance)


def _knows(caller: Caller, row: Row) -> bool:
    """Of the project: a controller that reports to another app's operation is worth telling."""
    return caller.sees(Scope(tenant_id=row["tenant_id"], project_id=row["project_id"]))
