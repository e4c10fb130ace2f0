"""Operations on many members at once: one result each, and a policy for when some do not succeed."""

from collections.abc import Awaitable, Callable

from gpuaas_contract import ids
from gpuaas_contract.base import Resource
from gpuaas_contract.bulk import (
    Bulk,
    BulkPage,
    BulkPolicy,
    BulkResult,
    MemberOperationsCreate,
    MembersAdd,
    RefusedTarget,
)
from gpuaas_contract.events import BulkEvent
from gpuaas_contract.instances import Placement
from gpuaas_contract.operations import Kind, OperationCreate, OperationState
from gpuaas_contract.problems import Code, FieldError
from gpuaas_platform.allocations.storage import allocations as allocation_store
from gpuaas_platform.catalogue.service.entitlements import require_entitled
from gpuaas_platform.catalogue.service.versions import manifest_of
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import Refusal, not_found
from gpuaas_platform.core.pages import cut_page, decode_cursor
from gpuaas_platform.core.records import to_wire
from gpuaas_platform.identity.rules.policy import Caller, Permission, Scope
from gpuaas_platform.instances.records import InstanceView
from gpuaas_platform.instances.rules.actions import InstanceFacts, addition_denial, excludes
from gpuaas_platform.instances.rules.placements import Machines, check_placements, mode_problem
from gpuaas_platform.instances.service import desires, instances
from gpuaas_platform.instances.service.deploy_checks import find_machines, refuse_errors
from gpuaas_platform.instances.service.preflights import InstanceRequest
from gpuaas_platform.instances.storage import instances as instance_store
from gpuaas_platform.operations.records import BulkView, OperationRecord, policy_document
from gpuaas_platform.operations.rules.bulks import needed, state_of, with_operation
from gpuaas_platform.operations.service.endings import follow_members
from gpuaas_platform.operations.service.operations import insert
from gpuaas_platform.operations.service.requests import make_member, request_on_member, request_operation
from gpuaas_platform.operations.storage import bulks as store

Ask = Callable[[InstanceView, str, str], Awaitable[tuple[OperationRecord, str]]]
"""Makes the operation for one target, or refuses. It gets the instance as it is then, the target and the bulk's id, and
returns which component the operation is about, too."""


async def add_members(tx: Transaction, caller: Caller, instance_id: str, body: MembersAdd) -> Bulk:
    seen = await instances.require_instance(tx, caller, instance_id, Permission.OPERATION_REQUEST)
    machines = await find_machines(tx, seen.project_id, body.allocation_ids, lock=True, instance_id=instance_id)
    instance = await instances.require_instance(tx, caller, instance_id, Permission.OPERATION_REQUEST, lock=True)
    tx.match(instance)
    await require_entitled(tx, caller, instance.tenant_id, instance.app_slug, known=True)
    manifest = manifest_of(instance)
    if manifest.component(body.component_key) is None:
        raise Refusal(Code.PLACEMENT_INVALID, f"{manifest.slug} has no component {body.component_key!r}")
    declared = manifest.member_operation(Kind.ADD, body.component_key)
    if declared is None:
        denial = addition_denial(InstanceFacts.of(instance, manifest), body.component_key)
        assert denial is not None
        raise denial.refusal()
    input = desires.check_input(tx, instance.tenant_id, declared, body.input)

    async def ask(present: InstanceView, allocation_id: str, bulk_id: str) -> tuple[OperationRecord, str]:
        placement = Placement(component_key=body.component_key, allocation_id=allocation_id)
        denial = addition_denial(InstanceFacts.of(present, manifest), body.component_key)
        if denial is not None:
            raise denial.refusal()
        live = await instance_store.list_live_on(tx, [allocation_id])
        known = Machines(machines.found, live, instance_id)
        refuse_errors(list(check_placements([placement], manifest, known, "")))
        await _require_mode(tx, InstanceFacts.of(present, manifest), placement)
        member_id = await make_member(tx, present, placement, machines.found[allocation_id].node_id)
        return await insert(tx, present, declared, member_id, input, bulk_id=bulk_id), body.component_key

    bulk_id = await _ask_all(tx, instance, Kind.ADD, body.policy, body.allocation_ids, "allocation_id", ask)
    await follow_members(tx, instance)
    return await _read(tx, bulk_id)


async def _require_mode(tx: Transaction, facts: InstanceFacts, placement: Placement) -> None:
    if facts.mode is None or facts.mode.max_machines is None:
        return
    used = {member.allocation_id for member in await instance_store.list_live(tx, facts.instance_id)}
    counts = {key: facts.present(key) for key in facts.counts}
    counts[placement.component_key] = facts.present(placement.component_key) + 1
    if (problem := mode_problem(facts.mode, counts, len(used | {placement.allocation_id}))) is not None:
        raise Refusal(Code.ACTION_NOT_ALLOWED, problem)


async def request_on_members(tx: Transaction, caller: Caller, instance_id: str, body: MemberOperationsCreate) -> Bulk:
    await instances.require_instance(tx, caller, instance_id, Permission.OPERATION_REQUEST)
    if body.kind == Kind.REMOVE:
        await allocation_store.lock_asking(tx, instance_id)
    instance = await instances.require_instance(tx, caller, instance_id, Permission.OPERATION_REQUEST, lock=True)
    tx.match(instance)
    if body.kind == Kind.REPLACE:
        raise Refusal(Code.INVALID_REQUEST, "replace is for one member at a time: each needs a machine of its own")

    async def ask(present: InstanceView, member_id: str, bulk_id: str) -> tuple[OperationRecord, str]:
        member = await instance_store.get_member(tx, member_id)
        if member is None or member.instance_id != instance_id:
            raise not_found("member", member_id)
        row = await request_on_member(tx, present, member, body.kind, body.input, body.queue, bulk_id=bulk_id)
        return row, member.component_key

    bulk_id = await _ask_all(tx, instance, body.kind, body.policy, body.member_ids, "member_id", ask)
    return await _read(tx, bulk_id)


async def _ask_all(
    tx: Transaction, instance: InstanceView, kind: str, policy: BulkPolicy, targets: list[str], name: str, ask: Ask
) -> str:
    """Ask for one after the other, so that each sees what the ones before have taken. Refuse as a whole where the
    policy cannot be met; then nothing of it has happened."""
    if len(set(targets)) != len(targets):
        raise Refusal(Code.INVALID_REQUEST, f"each {name} is named once")
    row = await store.insert(tx, ids.new_id(ids.BULK), instance, kind, policy)
    results: list[BulkResult] = []
    present = instance
    for target in targets:
        try:
            operation, component_key = await ask(present, target, row.id)
        except Refusal as refusal:
            results.append(BulkResult.model_validate({name: target, "refused": _refused(refusal)}))
        else:
            accepted_target = {name: target, "operation_id": operation.id, "member_id": operation.member_id}
            results.append(BulkResult.model_validate(accepted_target))
            if any(excludes(other, operation) for other in present.open_operations):
                # It waits for others or has pre-empted them, and who knows what followed from that.
                present = await instances.reread(tx, instance.id)
            else:
                present = with_operation(present, operation, component_key)
    accepted = sum(result.refused is None for result in results)
    if accepted < needed(policy, len(targets)):
        raise _not_met(policy, results, accepted, name)
    await store.set_results(tx, row.id, results)
    message = f"{kind} of {len(targets)}, {accepted} accepted"
    scope = {"project_id": instance.project_id, "instance_id": instance.id}
    await tx.changed(BulkEvent.REQUESTED, row, message=message, **scope)
    refused = len(targets) - accepted
    detail = {"kind": kind, "policy": policy_document(policy), "accepted": accepted, "refused": refused}
    await tx.audit("bulk.request", row.id, project_id=instance.project_id, detail=detail)
    return row.id


def _refused(refusal: Refusal) -> RefusedTarget:
    return RefusedTarget(
        code=refusal.code,
        detail=refusal.detail,
        allowed_actions=refusal.allowed_actions,
        context=refusal.context,
    )


def _not_met(policy: BulkPolicy, results: list[BulkResult], accepted: int, name: str) -> Refusal:
    refused = [(number, result.refused) for number, result in enumerate(results) if result.refused is not None]
    errors = [FieldError(pointer=f"/{name}s/{number}", detail=why.detail) for number, why in refused]
    first = refused[0][1] if refused else None
    detail = f"{accepted} of {len(results)} can be done, {needed(policy, len(results))} are needed"
    if first is not None:
        detail = f"{detail}: {first.detail}"
    context = {"results": [result.model_dump(mode="json", exclude_none=True) for result in results[:100]]}
    return Refusal(Code.POLICY_NOT_MET, detail, errors=errors[:20], context=context)


def _to_model(row: BulkView) -> Bulk:
    policy = row.policy.policy
    results = [result.model_copy(update={"state": _state_of_result(row, result)}) for result in row.results]
    return to_wire(Bulk, row, policy=policy, results=results, state=state_of(policy, row.states, len(results)))


def _state_of_result(row: BulkView, result: BulkResult) -> OperationState | None:
    state = None if result.operation_id is None else row.states.get(result.operation_id)
    return None if state is None else OperationState(state)


async def _read(tx: Transaction, bulk_id: str) -> Bulk:
    row = await store.get(tx, bulk_id)
    assert row is not None
    return _to_model(row)


async def get_bulk(tx: Transaction, caller: Caller, bulk_id: str) -> Bulk:
    row = await store.get(tx, bulk_id)
    if row is None:
        raise not_found("bulk operation", bulk_id)
    scope = Scope(tenant_id=row.tenant_id, project_id=row.project_id, app_slug=row.app_slug)
    caller.require(Permission.INSTANCE_READ, scope, "bulk operation", bulk_id)
    return _to_model(row)


async def list_bulks(tx: Transaction, caller: Caller, instance_id: str, cursor: str | None, limit: int) -> BulkPage:
    await instances.require_instance(tx, caller, instance_id, Permission.INSTANCE_READ)
    rows, after = cut_page(await store.list_of_instance(tx, instance_id, decode_cursor(cursor), limit + 1), limit)
    return BulkPage(items=[_to_model(row) for row in rows], next_cursor=after)


async def request_any(tx: Transaction, caller: Caller, instance_id: str, body: InstanceRequest) -> Resource:
    """Make a request of any kind on an instance, as a preflight tries it."""
    if isinstance(body, OperationCreate):
        return await request_operation(tx, caller, instance_id, body)
    if isinstance(body, MembersAdd):
        return await add_members(tx, caller, instance_id, body)
    return await request_on_members(tx, caller, instance_id, body)
