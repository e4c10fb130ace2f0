"""Operations: requested by people, done by the app's controller under a fenced lease."""

import json

from gpuaas_contract import ids
from gpuaas_contract.base import JsonObject
from gpuaas_contract.instances import DesiredState, MemberStatus
from gpuaas_contract.manifest import Manifest
from gpuaas_contract.operations import (
    LEASE_SECONDS,
    RESIZE,
    Claim,
    ClaimRequest,
    CompleteRequest,
    FailRequest,
    Lease,
    Operation,
    OperationCreate,
    OperationPage,
    OperationState,
    Step,
    StepReport,
)
from gpuaas_contract.problems import AllowedAction, Code
from gpuaas_platform.domain.errors import Refusal, not_found
from gpuaas_platform.domain.instances import operation_actions
from gpuaas_platform.domain.policy import Caller, Permission, Scope
from gpuaas_platform.services import instances, preflight_answers
from gpuaas_platform.services.catalogue import manifest_of
from gpuaas_platform.services.identity import visible_projects
from gpuaas_platform.services.inputs import check_inputs
from gpuaas_platform.services.pages import cut_page, decode_cursor
from gpuaas_platform.services.resize_answers import answered
from gpuaas_platform.storage import access as access_store
from gpuaas_platform.storage import instances as instance_store
from gpuaas_platform.storage import operations as store
from gpuaas_platform.storage.database import Row, Transaction

EVIDENCE_LIMIT = 64 * 1024
RESULT_LIMIT = 1024 * 1024
DECOMMISSION = "decommission"


async def _to_models(tx: Transaction, rows: list[Row]) -> list[Operation]:
    steps: dict[str, list[Step]] = {row["id"]: [] for row in rows}
    for step in await store.list_steps(tx, list(steps)):
        steps[step["operation_id"]].append(Step.model_validate(step))
    return [_to_model(row, steps[row["id"]]) for row in rows]


def _to_model(row: Row, steps: list[Step]) -> Operation:
    lease = None
    if row["lease_holder"] is not None:
        lease = Lease(holder=row["lease_holder"], expires_at=row["lease_expires_at"])
    actions = operation_actions(row, is_latest=row["is_latest"])
    return Operation.model_validate({**row, "steps": steps, "lease": lease, "allowed_actions": actions})


async def _read(tx: Transaction, operation_id: str) -> Operation:
    row = await store.get(tx, operation_id)
    assert row is not None
    return (await _to_models(tx, [row]))[0]


async def _changed(tx: Transaction, row: Row, event: str, message: str = "") -> None:
    await tx.changed(
        "operation",
        row,
        event,
        message=message,
        project_id=row["project_id"],
        instance_id=row["instance_id"],
        app_slug=row["app_slug"],
    )


async def require_operation(
    tx: Transaction, caller: Caller, operation_id: str, permission: Permission, *, lock: bool = False
) -> Row:
    row = await (store.lock if lock else store.get)(tx, operation_id)
    if row is None:
        raise not_found("operation", operation_id)
    scope = Scope(tenant_id=row["tenant_id"], project_id=row["project_id"], app_slug=row["app_slug"])
    caller.require(permission, scope, "operation", operation_id)
    return row


async def get_operation(tx: Transaction, caller: Caller, operation_id: str) -> Operation:
    row = await require_operation(tx, caller, operation_id, Permission.INSTANCE_READ)
    return (await _to_models(tx, [row]))[0]


async def list_operations(
    tx: Transaction,
    caller: Caller,
    project_id: str | None,
    instance_id: str | None,
    state: str | None,
    claimable: bool,
    cursor: str | None,
    limit: int,
) -> OperationPage:
    projects = await visible_projects(tx, caller, project_id, Permission.INSTANCE_READ)
    if instance_id is not None:
        await instances.require_instance(tx, caller, instance_id, Permission.INSTANCE_READ)
    if claimable and caller.app_slug is None:
        raise Refusal(Code.FORBIDDEN, "only a service account that is bound to an app can claim operations")
    app = caller.app_slug if claimable else None
    rows = await store.list_matching(tx, projects, instance_id, state, app, decode_cursor(cursor), limit + 1)
    rows, after = cut_page(rows, limit)
    return OperationPage(items=await _to_models(tx, rows), next_cursor=after)


# Asked for by people


async def create(
    tx: Transaction, instance: Row, manifest: Manifest, kind: str, member_id: str | None, input: JsonObject
) -> Row:
    declared = manifest.operation(kind)
    if declared is None:
        raise Refusal(Code.INVALID_REQUEST, f"{manifest.slug} {manifest.version} has no operation {kind!r}")
    return await insert(tx, instance, manifest, kind, member_id, check_inputs(input, declared.input_schema, "/input"))


async def insert(
    tx: Transaction, instance: Row, manifest: Manifest, kind: str, member_id: str | None, input: JsonObject
) -> Row:
    """An operation whose input is known to be right."""
    declared = manifest.operation(kind)
    assert declared is not None
    row = await store.insert(tx, ids.new_id(ids.OPERATION), instance, member_id, kind, input, declared.deadline_seconds)
    if member_id is not None:
        await instance_store.set_last_operation(tx, member_id, row["id"])
    await _changed(tx, row, "requested", f"{kind} requested")
    return row


async def request_operation(tx: Transaction, caller: Caller, instance_id: str, body: OperationCreate) -> Operation:
    instance = await instances.require_instance(tx, caller, instance_id, Permission.OPERATION_REQUEST, lock=True)
    tx.match(instance)
    manifest = manifest_of(instance)
    if body.kind != DECOMMISSION:
        # Deploy and add are made by the deploy itself; further kinds come with the apps that implement them.
        raise Refusal(Code.INVALID_REQUEST, f"{body.kind!r} cannot be requested; the instance allows: decommission")
    if instance["ended_at"] is not None:
        raise Refusal(Code.INVALID_STATE, "the instance is decommissioned already")
    open_operations = await store.list_open(tx, instance_id)
    for operation in open_operations:
        if operation["kind"] == DECOMMISSION:
            raise Refusal(
                Code.OPERATION_RUNNING,
                f"operation {operation['id']} decommissions the instance already",
                allowed_actions=[
                    AllowedAction(
                        action="watch",
                        title="Watch the running operation",
                        method="GET",
                        href=f"/v1/operations/{operation['id']}",
                    )
                ],
                context={"operation_id": operation["id"]},
            )
    # Deletion pre-empts: whatever still runs is cancelled, and its lease is stale from now on.
    for operation in open_operations:
        await _finish(
            tx,
            operation,
            OperationState.CANCELLED,
            {},
            {
                "code": "preempted",
                "detail": "the instance is being decommissioned",
                "retryable": False,
            },
        )
    if instance["desired_state"] != DesiredState.DECOMMISSIONED:
        instance = {**instance, **await instance_store.set_decommissioned(tx, instance_id)}
        await tx.changed(
            "instance", instance, "decommissioning", project_id=instance["project_id"], instance_id=instance_id
        )
    row = await create(tx, instance, manifest, DECOMMISSION, None, body.input)
    await tx.audit("operation.request", row["id"], project_id=row["project_id"], detail={"kind": body.kind})
    return await _read(tx, row["id"])


async def retry_operation(tx: Transaction, caller: Caller, operation_id: str) -> Operation:
    found = await require_operation(tx, caller, operation_id, Permission.OPERATION_REQUEST)
    if found["preflight_id"] is not None:
        raise Refusal(Code.INVALID_STATE, "a preflight is not retried: ask for another one")
    instance = await instance_store.lock(tx, found["instance_id"])
    assert instance is not None
    row = await require_operation(tx, caller, operation_id, Permission.OPERATION_REQUEST, lock=True)
    tx.match(row)
    if not any(action.action == "retry" for action in operation_actions(row, is_latest=row["is_latest"])):
        raise Refusal(
            Code.INVALID_STATE, f"only the newest failed operation can be retried; this one is {row['state']}"
        )
    declared = manifest_of(instance).operation(row["kind"])
    assert declared is not None
    await _changed(tx, await store.reopen(tx, operation_id, declared.deadline_seconds), "retried")
    await tx.audit("operation.retry", operation_id, project_id=row["project_id"])
    return await _read(tx, operation_id)


# Done by the controller


async def claim_operation(tx: Transaction, caller: Caller, operation_id: str, body: ClaimRequest) -> Claim:
    row = await require_operation(tx, caller, operation_id, Permission.OPERATION_WORK, lock=True)
    tx.match(row)
    if OperationState(row["state"]).is_final:
        raise Refusal(Code.INVALID_STATE, f"the operation is {row['state']} already")
    if row["lease_live"]:
        raise Refusal(Code.LEASE_HELD, f"{row['lease_holder']} holds the lease", retry_after=LEASE_SECONDS)
    await access_store.end_of_operation(tx, operation_id)
    claimed = await store.claim(tx, operation_id, body.holder, caller.id, LEASE_SECONDS)
    await _changed(tx, claimed, "claimed", f"claimed by {body.holder}, attempt {claimed['attempt']}")
    await tx.audit(
        "operation.claim",
        operation_id,
        project_id=row["project_id"],
        detail={"holder": body.holder, "fencing_token": claimed["fencing_token"]},
    )
    return Claim(
        operation=await _read(tx, operation_id),
        fencing_token=claimed["fencing_token"],
        lease_seconds=LEASE_SECONDS,
    )


async def require_lease(
    tx: Transaction, caller: Caller, operation_id: str, fencing_token: int, *, instance_id: str | None = None
) -> Row:
    """The operation, locked, where the caller holds its live lease under exactly this token."""
    row = await require_operation(tx, caller, operation_id, Permission.OPERATION_WORK, lock=True)
    if instance_id is not None and row["instance_id"] != instance_id:
        raise Refusal(Code.FORBIDDEN, "this operation belongs to another instance")
    if row["fencing_token"] != fencing_token or row["lease_account_id"] != caller.id or not row["lease_live"]:
        state = row["state"] if row["fencing_token"] is None else "held under another token or expired"
        raise Refusal(
            Code.STALE_LEASE,
            f"this lease on {operation_id} is over ({state}); stop, and claim it again if you may",
        )
    return row


async def heartbeat(tx: Transaction, caller: Caller, operation_id: str, fencing_token: int) -> Operation:
    await require_lease(tx, caller, operation_id, fencing_token)
    await store.extend_lease(tx, operation_id, LEASE_SECONDS)
    return await _read(tx, operation_id)


async def yield_lease(tx: Transaction, caller: Caller, operation_id: str, fencing_token: int) -> Operation:
    row = await require_lease(tx, caller, operation_id, fencing_token)
    await access_store.end_of_operation(tx, operation_id)
    await _changed(
        tx, await store.drop_lease(tx, operation_id), "yielded", f"{row['lease_holder']} gave the lease back"
    )
    return await _read(tx, operation_id)


def _check_size(document: JsonObject, limit: int, what: str) -> None:
    if len(json.dumps(document)) > limit:
        raise Refusal(Code.TOO_LARGE, f"{what} is limited to {limit} bytes")


async def report_step(tx: Transaction, caller: Caller, operation_id: str, body: StepReport) -> Operation:
    row = await require_lease(tx, caller, operation_id, body.fencing_token)
    _check_size(body.evidence, EVIDENCE_LIMIT, "the evidence of a step")
    reported = await store.report_step(tx, row, body.key, body.title, body.status, body.message, body.evidence)
    message = f"{body.title}: {body.message}" if body.message else body.title
    await _changed(tx, reported, f"step_{body.status.value}", message)
    return await _read(tx, operation_id)


async def complete_operation(tx: Transaction, caller: Caller, operation_id: str, body: CompleteRequest) -> Operation:
    row = await require_lease(tx, caller, operation_id, body.fencing_token)
    _check_size(body.result, RESULT_LIMIT, "the result of an operation")
    if row["preflight_id"] is not None:
        preflight_answers.check_result(body.result)
    for member_id, status in body.member_statuses.items():
        await _set_member_status(tx, row, member_id, status)
    await _finish(tx, row, OperationState.SUCCEEDED, body.result, None)
    await tx.audit("operation.complete", operation_id, project_id=row["project_id"])
    if row["kind"] == DECOMMISSION:
        await instances.end_if_gone(tx, row["instance_id"])
    return await _read(tx, operation_id)


async def _set_member_status(tx: Transaction, operation: Row, member_id: str, status: MemberStatus) -> None:
    member = await instance_store.get_member(tx, member_id)
    if member is None or member["instance_id"] != operation["instance_id"]:
        raise not_found("member", member_id)
    if operation["member_id"] not in {None, member_id}:
        raise Refusal(Code.FORBIDDEN, "this operation is about another member")
    row = await instance_store.report_member(tx, member_id, status, None, None)
    scope = {"project_id": operation["project_id"], "instance_id": operation["instance_id"]}
    await tx.changed("member", row, status.value, **scope)


async def fail_operation(tx: Transaction, caller: Caller, operation_id: str, body: FailRequest) -> Operation:
    row = await require_lease(tx, caller, operation_id, body.fencing_token)
    _check_size(body.result, RESULT_LIMIT, "the result of an operation")
    await _finish(tx, row, OperationState.FAILED, body.result, body.error.model_dump(mode="json"))
    await tx.audit("operation.fail", operation_id, project_id=row["project_id"], detail={"code": body.error.code})
    return await _read(tx, operation_id)


async def fail_overdue(tx: Transaction) -> None:
    for row in await store.list_overdue(tx):
        if row["state"] == OperationState.PENDING and row["attempt"] == 0:
            detail = "no controller claimed the operation before its deadline; check that the app's controller runs"
        else:
            detail = "the operation did not end before its deadline"
        error = {"code": "deadline_exceeded", "detail": detail, "retryable": True}
        await _finish(tx, row, OperationState.FAILED, row["result"], error)


async def _finish(
    tx: Transaction, row: Row, state: OperationState, result: JsonObject, error: JsonObject | None
) -> None:
    await access_store.end_of_operation(tx, row["id"])
    finished = await store.finish(tx, row["id"], state, result, error)
    await _changed(
        tx, finished, state.value, f"{row['kind']} {state.value}" + (f": {error['detail']}" if error else "")
    )
    if row["preflight_id"] is not None:
        await preflight_answers.answered(tx, row, state, result, error)
    if row["kind"] == RESIZE:
        for pointless in await store.lock_open(tx, await answered(tx, row, state, error)):
            why = {"code": "withdrawn", "detail": "another app on the machine refused the resize", "retryable": False}
            await _finish(tx, pointless, OperationState.CANCELLED, {}, why)
