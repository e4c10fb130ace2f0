"""What an app's controller says of its instances and members, under the lease of an operation."""

import json
from datetime import UTC, datetime

from gpuaas_contract.base import JsonObject
from gpuaas_contract.instances import Condition, Instance, InstanceReport, Member, MemberReport
from gpuaas_contract.problems import Code
from gpuaas_platform.domain.errors import Refusal
from gpuaas_platform.domain.policy import Caller, Permission
from gpuaas_platform.services.instances import require_instance, require_member, reread, to_model
from gpuaas_platform.services.operations import require_lease
from gpuaas_platform.storage import instances as store
from gpuaas_platform.storage.database import Transaction

DETAIL_LIMIT = 64 * 1024


async def report_instance(tx: Transaction, caller: Caller, instance_id: str, body: InstanceReport) -> Instance:
    row = await require_instance(tx, caller, instance_id, Permission.OPERATION_WORK, lock=True)
    await require_lease(tx, caller, body.operation_id, body.fencing_token, instance_id=instance_id)
    conditions = _merge_conditions(row["conditions"], body.conditions)
    notes = None if body.access_notes is None else [note.model_dump() for note in body.access_notes]
    reported = await store.report(tx, instance_id, conditions, notes, body.observed_runtime)
    await tx.changed("instance", reported, "reported", project_id=row["project_id"], instance_id=instance_id)
    return to_model(await reread(tx, instance_id))


def _merge_conditions(present: list[JsonObject], reported: list[Condition] | None) -> list[JsonObject] | None:
    """A report replaces the conditions that it names. `changed_at` moves only when the status does."""
    if reported is None:
        return None
    merged = {condition["type"]: condition for condition in present}
    for condition in reported:
        before = merged.get(condition.type)
        document = condition.model_dump(mode="json")
        same = before is not None and before["status"] == document["status"]
        document["changed_at"] = before["changed_at"] if same and before else datetime.now(UTC).isoformat()
        merged[condition.type] = document
    return list(merged.values())


async def report_member(tx: Transaction, caller: Caller, member_id: str, body: MemberReport) -> Member:
    member = await require_member(tx, caller, member_id, Permission.OPERATION_WORK)
    instance_id = member["instance_id"]
    instance = await require_instance(tx, caller, instance_id, Permission.OPERATION_WORK, lock=True)
    operation = await require_lease(tx, caller, body.operation_id, body.fencing_token, instance_id=instance_id)
    if operation["member_id"] not in {None, member_id}:
        raise Refusal(Code.FORBIDDEN, "this operation is about another member")
    if body.adapter_detail is not None and len(json.dumps(body.adapter_detail)) > DETAIL_LIMIT:
        raise Refusal(Code.TOO_LARGE, f"adapter_detail is limited to {DETAIL_LIMIT} bytes")
    conditions = _merge_conditions(member["conditions"], body.conditions)
    row = await store.report_member(tx, member_id, body.status, conditions, body.adapter_detail)
    event = body.status.value if body.status is not None else "reported"
    await tx.changed("member", row, event, project_id=instance["project_id"], instance_id=instance_id)
    return Member.model_validate(row)
