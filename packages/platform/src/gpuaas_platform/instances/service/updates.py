"""Changes of an instance that need no work on its machines."""

from gpuaas_contract.events import InstanceEvent
from gpuaas_contract.findings import Severity
from gpuaas_contract.instances import Instance, InstanceUpdate
from gpuaas_contract.offers import Offer
from gpuaas_contract.problems import Code
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.identity.rules.policy import Caller, Permission
from gpuaas_platform.identity.service.presence import find_controller
from gpuaas_platform.instances.records import InstanceView
from gpuaas_platform.instances.rules.actions import mode_denial
from gpuaas_platform.instances.service.deploy_checks import refusal_of
from gpuaas_platform.instances.service.instances import facts_of, require_instance, reread, to_model
from gpuaas_platform.instances.service.reconcile_ends import end_lease
from gpuaas_platform.instances.storage import instances as store
from gpuaas_platform.instances.storage import reconcile as reconcile_store
from gpuaas_platform.operations.storage import operations as operation_store


async def update_instance(tx: Transaction, caller: Caller, instance_id: str, body: InstanceUpdate) -> Instance:
    """Change the mode, the operator, or both. What it has already is no change."""
    instance = await require_instance(tx, caller, instance_id, Permission.INSTANCE_DEPLOY, lock=True)
    tx.match(instance)
    if body.mode is not None:
        await _set_mode(tx, instance, body.mode)
    if "operator_account_id" in body.model_fields_set:
        await _set_operator(tx, instance, body.operator_account_id)
    return to_model(await reread(tx, instance_id))


async def _set_mode(tx: Transaction, instance: InstanceView, mode: str) -> None:
    """From now on the actions and limits of the mode hold."""
    machines = {member.allocation_id for member in await store.list_live(tx, instance.id)}
    denial = mode_denial(facts_of(instance), mode, len(machines))
    if denial is not None:
        raise denial.refusal()
    if mode == instance.mode:
        return
    row = await store.set_mode(tx, instance.id, mode)
    message = f"mode {mode}, before: {instance.mode or 'none'}"
    await tx.changed(InstanceEvent.UPDATED, row, message=message, project_id=row.project_id, instance_id=instance.id)
    detail = {"mode": mode, "before": instance.mode}
    await tx.audit("app_instance.update", instance.id, project_id=row.project_id, detail=detail)


async def _set_operator(tx: Transaction, instance: InstanceView, account_id: str | None) -> None:
    """Hand the instance over. Work under a live lease is not taken away from its holder; the reconcile lease is."""
    if instance.ended_at is not None:
        raise Refusal(Code.INVALID_STATE, "the instance is decommissioned already: nobody works on it")
    if account_id == instance.operator_account_id:
        return
    if account_id is not None:
        found = await find_controller(tx, instance.app_slug, instance.tenant_id, instance.project_id, account_id)
        if found is not None and found.severity == Severity.ERROR:
            raise refusal_of([found])
    held = await operation_store.get_worked_on(tx, instance.id)
    if held is not None:
        actions = [
            Offer.GET_OPERATION.action("watch", "Watch the running operation", operation_id=held.id),
            Offer.CANCEL_OPERATION.action("cancel", "Call the operation off", operation_id=held.id),
        ]
        ways = "wait for it, cancel it, or disable the account of its controller, whose lease then runs out"
        why = f"operation {held.id} is under way: {ways}"
        raise Refusal(Code.OPERATION_RUNNING, why, allowed_actions=actions, context={"operation_id": held.id})
    row = await store.set_operator(tx, instance.id, account_id)
    message = f"operator {account_id or 'any'}, before: {instance.operator_account_id or 'any'}"
    await tx.changed(InstanceEvent.UPDATED, row, message=message, project_id=row.project_id, instance_id=instance.id)
    detail = {"operator": account_id, "before": instance.operator_account_id}
    await tx.audit("app_instance.set_operator", instance.id, project_id=row.project_id, detail=detail)
    lease = instance.reconcile_lease
    if lease is not None and account_id is not None and not await _holds(tx, instance.id, account_id):
        await end_lease(tx, row, "the instance has another operator")


async def _holds(tx: Transaction, instance_id: str, account_id: str) -> bool:
    lease = await reconcile_store.get(tx, instance_id)
    return lease is not None and lease.account_id == account_id
