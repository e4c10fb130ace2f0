"""Reports of an app's controller on its instances and members, under the lease of an operation, or as an observer."""

from collections.abc import Iterable
from datetime import UTC, datetime

from gpuaas_contract.events import InstanceEvent, MemberEvent, OperationEvent
from gpuaas_contract.instances import Condition, Instance, InstanceReport, Member, MemberReport, MemberStatus
from gpuaas_contract.operations import RESULT_BYTES
from gpuaas_contract.problems import Code, FieldError
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.core.evidence import DETAIL_LIMIT, check_shown
from gpuaas_platform.identity.rules.policy import Caller, Permission, Scope
from gpuaas_platform.instances.records import InstanceView, MemberView
from gpuaas_platform.instances.service import reconcile
from gpuaas_platform.instances.service.instances import get_member, require_instance, require_member, reread, to_model
from gpuaas_platform.instances.storage import instances as store
from gpuaas_platform.operations.records import OperationView
from gpuaas_platform.operations.service.operations import changed, require_lease
from gpuaas_platform.operations.service.work import check_member_write, place_anew
from gpuaas_platform.operations.storage import operations as operation_store

LONGEST_REFUSAL = 500


async def report_instance(tx: Transaction, caller: Caller, instance_id: str, body: InstanceReport) -> Instance:
    row = await require_instance(tx, caller, instance_id, Permission.OPERATION_WORK, lock=True)
    operation = await _require_right(tx, caller, instance_id, body)
    _check_conditions(body.conditions)
    check_shown([note.model_dump() for note in body.access_notes or []], RESULT_BYTES, "access notes", "/access_notes")
    conditions = _merge_conditions(row.conditions, body.conditions)
    if operation is None:
        _refuse_change(body, "access_notes")
        if _is_no_news(row, conditions=conditions, observed_runtime=body.observed_runtime):
            return to_model(row)
    reported = await store.report(tx, instance_id, conditions, body.access_notes, body.observed_runtime)
    await tx.changed(InstanceEvent.REPORTED, reported, project_id=row.project_id, instance_id=instance_id)
    return to_model(await reread(tx, instance_id))


async def _require_right(
    tx: Transaction, caller: Caller, instance_id: str, body: InstanceReport | MemberReport
) -> OperationView | None:
    """Return the operation whose lease it is; None where it is the reconcile lease of the instance."""
    if body.operation_id is None:
        await reconcile.require_lease(tx, caller, instance_id, body.fencing_token)
        return None
    return await require_lease(tx, caller, body.operation_id, body.fencing_token, instance_id=instance_id)


def _refuse_change(body: InstanceReport | MemberReport, field: str) -> None:
    if getattr(body, field) is not None:
        detail = f"{field} is changed under the lease of an operation; a reconcile lease is for what was observed"
        raise Refusal(Code.FORBIDDEN, detail, errors=[FieldError(pointer=f"/{field}", detail=detail)])


def _is_no_news(row: InstanceView | MemberView, **reported: object) -> bool:
    """An observer says the same every few seconds: nobody needs to hear it twice."""
    return all(value is None or value == getattr(row, field) for field, value in reported.items())


def _merge_conditions(present: Iterable[Condition], reported: list[Condition] | None) -> tuple[Condition, ...] | None:
    """Replace the conditions that a report names. `changed_at` moves only when the status does."""
    if reported is None:
        return None
    merged = {condition.type: condition for condition in present}
    for condition in reported:
        before = merged.get(condition.type)
        same = before is not None and before.status == condition.status
        changed_at = before.changed_at if same and before else datetime.now(UTC)
        merged[condition.type] = condition.model_copy(update={"changed_at": changed_at})
    return tuple(merged.values())


async def report_member(tx: Transaction, caller: Caller, member_id: str, body: MemberReport) -> Member:
    member = await require_member(tx, caller, member_id, Permission.OPERATION_WORK)
    instance_id = member.instance_id
    instance = await require_instance(tx, caller, instance_id, Permission.OPERATION_WORK, lock=True)
    operation = await _require_right(tx, caller, instance_id, body)
    if operation is None:
        _refuse_change(body, "status")
    else:
        check_member_write(operation, member, body.status)
    check_shown(body.adapter_detail or {}, DETAIL_LIMIT, "adapter_detail", "/adapter_detail")
    _check_conditions(body.conditions)
    conditions = _merge_conditions(member.conditions, body.conditions)
    news = {"adapter_detail": body.adapter_detail, "observed_runtime": body.observed_runtime}
    if operation is None and _is_no_news(member, conditions=conditions, **news):
        return await get_member(tx, caller, member_id)
    row = await store.report_member(tx, member_id, body.status, conditions, body.adapter_detail, body.observed_runtime)
    event = MemberEvent(body.status) if body.status is not None else MemberEvent.REPORTED
    await tx.changed(event, row, project_id=instance.project_id, instance_id=instance_id)
    if body.status == MemberStatus.REMOVED and member.status != MemberStatus.REMOVED:
        await place_anew(tx, instance_id)
    return await get_member(tx, caller, member_id)


def _check_conditions(conditions: list[Condition] | None) -> None:
    for number, condition in enumerate(conditions or []):
        check_shown(condition.model_dump(mode="json"), DETAIL_LIMIT, "a condition", f"/conditions/{number}")


async def tell_refusal(
    tx: Transaction,
    caller: Caller,
    refusal: Refusal,
    *,
    operation_id: str | None,
    member_id: str | None,
    instance_id: str | None,
) -> None:
    """Tell it on the operation, or on what the report was about where it named none. Strangers leave no words here."""
    message = f"{caller.name}: {refusal.detail} ({refusal.code.value})"[:LONGEST_REFUSAL]
    operation = None if operation_id is None else await operation_store.get(tx, operation_id)
    if operation is not None:
        if _knows(caller, operation):
            await changed(tx, operation, OperationEvent.REPORT_REFUSED, message)
        return
    if member_id is not None:
        member = await store.get_member(tx, member_id)
        if member is not None and _knows(caller, member):
            scope = {"project_id": member.project_id, "instance_id": member.instance_id}
            await tx.changed(MemberEvent.REPORT_REFUSED, member, message=message, **scope)
    elif instance_id is not None:
        instance = await store.get(tx, instance_id)
        if instance is not None and _knows(caller, instance):
            scope = {"project_id": instance.project_id, "instance_id": instance.id}
            await tx.changed(InstanceEvent.REPORT_REFUSED, instance, message=message, **scope)


def _knows(caller: Caller, row: OperationView | MemberView | InstanceView) -> bool:
    """Ask for the project only: a controller that reports to another app's operation is worth telling."""
    return caller.sees(Scope(tenant_id=row.tenant_id, project_id=row.project_id))
