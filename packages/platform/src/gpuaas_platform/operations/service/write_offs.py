"""Giving up on the proof that something is gone: audited, and what was not verified stays visible."""

from datetime import UTC, datetime

from gpuaas_contract.events import MemberEvent
from gpuaas_contract.instances import Instance, Member, MemberStatus, Unverified, WriteOff
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.identity.rules.policy import Caller, Permission
from gpuaas_platform.instances.records import InstanceView
from gpuaas_platform.instances.rules.actions import abandon_denial, forget_denial
from gpuaas_platform.instances.service import instances
from gpuaas_platform.instances.storage import instances as store
from gpuaas_platform.operations.service import receipts
from gpuaas_platform.operations.service.endings import follow_members
from gpuaas_platform.operations.storage import operations as operation_store


async def forget_member(tx: Transaction, caller: Caller, member_id: str, body: WriteOff) -> Member:
    found = await instances.require_member(tx, caller, member_id, Permission.OPERATION_REQUEST)
    instance = await store.lock(tx, found.instance_id)
    member = await store.get_member(tx, member_id)
    assert instance is not None
    assert member is not None
    tx.match(member)
    denial = forget_denial(instances.facts_of(instance), member)
    if denial is not None:
        raise denial.refusal()
    assert member.last_operation_id is not None
    unverified = await _unverified(tx, member.last_operation_id, body)
    await _bury(tx, instance, member_id, unverified)
    await follow_members(tx, instance)
    await receipts.issue(tx, instance.id, unverified.operation_id, written_off=member_id)
    detail = unverified.model_dump(mode="json")
    await tx.audit("member.forget", member_id, project_id=instance.project_id, detail=detail)
    return await instances.get_member(tx, caller, member_id)


async def abandon_instance(tx: Transaction, caller: Caller, instance_id: str, body: WriteOff) -> Instance:
    instance = await instances.require_instance(tx, caller, instance_id, Permission.OPERATION_REQUEST, lock=True)
    tx.match(instance)
    denial = abandon_denial(instances.facts_of(instance))
    if denial is not None:
        raise denial.refusal()
    assert instance.last_operation is not None
    unverified = await _unverified(tx, instance.last_operation.id, body)
    for member in await store.list_live(tx, instance_id):
        await _bury(tx, instance, member.id, unverified)
    await store.write_off(tx, instance_id, unverified)
    await instances.end_if_gone(tx, instance_id)
    await receipts.issue(tx, instance_id, unverified.operation_id)
    detail = unverified.model_dump(mode="json")
    await tx.audit("app_instance.abandon", instance_id, project_id=instance.project_id, detail=detail)
    return instances.to_model(await instances.reread(tx, instance_id))


async def _unverified(tx: Transaction, operation_id: str, body: WriteOff) -> Unverified:
    operation = await operation_store.get(tx, operation_id)
    assert operation is not None
    return Unverified(
        reason=body.reason,
        by=tx.principal_id,
        at=datetime.now(UTC),
        operation_id=operation_id,
        detail="" if operation.error is None else operation.error.detail,
    )


async def _bury(tx: Transaction, instance: InstanceView, member_id: str, unverified: Unverified) -> None:
    row = await store.report_member(tx, member_id, MemberStatus.REMOVED, unverified=unverified)
    message = f"written off without proof: {unverified.reason}"
    scope = {"project_id": instance.project_id, "instance_id": instance.id}
    await tx.changed(MemberEvent.REMOVED, row, message=message, **scope)
