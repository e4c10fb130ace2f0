"""Changes of an instance that need no work on its machines."""

from gpuaas_contract.events import InstanceEvent
from gpuaas_contract.instances import Instance, InstanceUpdate
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.identity.rules.policy import Caller, Permission
from gpuaas_platform.instances.rules.actions import mode_denial
from gpuaas_platform.instances.service.instances import facts_of, require_instance, reread, to_model
from gpuaas_platform.instances.storage import instances as store


async def update_instance(tx: Transaction, caller: Caller, instance_id: str, body: InstanceUpdate) -> Instance:
    """Change the mode: from now on its actions and limits hold. The mode that it has is no change."""
    instance = await require_instance(tx, caller, instance_id, Permission.INSTANCE_DEPLOY, lock=True)
    tx.match(instance)
    machines = {member.allocation_id for member in await store.list_live(tx, instance_id)}
    denial = mode_denial(facts_of(instance), body.mode, len(machines))
    if denial is not None:
        raise denial.refusal()
    if body.mode != instance.mode:
        row = await store.set_mode(tx, instance_id, body.mode)
        message = f"mode {body.mode}, before: {instance.mode or 'none'}"
        await tx.changed(
            InstanceEvent.UPDATED, row, message=message, project_id=row.project_id, instance_id=instance_id
        )
        detail = {"mode": body.mode, "before": instance.mode}
        await tx.audit("app_instance.update", instance_id, project_id=row.project_id, detail=detail)
    return to_model(await reread(tx, instance_id))
