"""Preflights: the platform's checks at once, the app's by an operation that its controller claims. Nothing changes."""

from collections.abc import Awaitable, Callable
from dataclasses import replace

from pydantic import ValidationError

from gpuaas_contract import ids
from gpuaas_contract.base import JsonObject, Resource
from gpuaas_contract.bulk import MemberOperationsCreate, MembersAdd
from gpuaas_contract.events import OperationEvent, PreflightEvent
from gpuaas_contract.findings import Finding, FindingSource, Severity
from gpuaas_contract.instances import InstanceDeploy, Placement
from gpuaas_contract.manifest import Manifest
from gpuaas_contract.operations import Kind, OperationCreate, OperationError, OperationState
from gpuaas_contract.preflights import AppChecks, Preflight, PreflightResult, PreflightState
from gpuaas_contract.problems import Code, FieldError
from gpuaas_platform.access.rules.reach import reach_observable
from gpuaas_platform.allocations.storage import allocations as allocation_store
from gpuaas_platform.catalogue.service.versions import deployable_version, manifest_of, manifest_of_version
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import Refusal, not_found
from gpuaas_platform.core.records import to_wire
from gpuaas_platform.identity.rules.policy import Caller, Permission, Scope
from gpuaas_platform.identity.service.presence import find_controller
from gpuaas_platform.identity.service.tenants import require_project
from gpuaas_platform.instances.records import (
    InstanceRecord,
    InstanceView,
    PreflightRecord,
    PreflightSubject,
    PreflightView,
)
from gpuaas_platform.instances.rules.placements import problem
from gpuaas_platform.instances.service.deploy_checks import check_deploy
from gpuaas_platform.instances.service.instances import require_instance
from gpuaas_platform.instances.storage import instances as instance_store
from gpuaas_platform.instances.storage import preflights as store
from gpuaas_platform.operations.records import OperationRecord

LONGEST_SECONDS = 300
LONGEST_MESSAGE = 4_000
"""People wait for it: whatever the manifest allows, an app's checks are over by then."""


async def tell(tx: Transaction, row: PreflightRecord, event: PreflightEvent, message: str = "") -> None:
    scope = {"project_id": row.project_id, "instance_id": row.instance_id, "app_slug": row.app_slug}
    await tx.changed(event, row, message=message, **scope)


def refuse_in_preflight(operation: OperationRecord, what: str) -> None:
    if operation.preflight_id is not None:
        raise Refusal(Code.FORBIDDEN, f"a preflight looks and changes nothing: there are no {what} for it")


def check_result(result: JsonObject) -> list[Finding]:
    """Before the operation ends: a controller that hands over nonsense hears of it."""
    try:
        findings = PreflightResult.model_validate(result).findings
    except ValidationError as error:
        errors = [
            FieldError(pointer="/result" + "".join(f"/{part}" for part in found["loc"]), detail=found["msg"])
            for found in error.errors()
        ]
        raise Refusal(Code.INVALID_REQUEST, "this is not the result of a preflight", errors=errors) from None
    return [finding.model_copy(update={"source": FindingSource.APP}) for finding in findings]


async def answered(
    tx: Transaction, operation: OperationRecord, state: OperationState, result: JsonObject, error: OperationError | None
) -> PreflightRecord:
    """Put the findings of the app into the preflight that the operation was made for."""
    assert operation.preflight_id is not None
    if state == OperationState.SUCCEEDED:
        checks, findings = AppChecks.DONE, check_result(result)
    else:
        why = (error and error.detail) or f"the operation was {state.value}"
        message = f"the app's own checks did not come to an end: {why}"[:LONGEST_MESSAGE]
        action = "look at the app's controller, then ask again"
        unfinished = Finding(severity=Severity.ERROR, code="app_checks_failed", message=message, action=action)
        checks, findings = AppChecks.FAILED, [unfinished]
    done = await store.finish(tx, operation.preflight_id, checks, findings)
    await tell(tx, done, PreflightEvent.DONE)
    return done


def _to_model(row: PreflightRecord) -> Preflight:
    errors = any(finding.severity == Severity.ERROR for finding in row.findings)
    done = row.state == PreflightState.DONE
    return to_wire(Preflight, row, ok=False if errors else True if done else None)


async def require_preflight(tx: Transaction, caller: Caller, preflight_id: str) -> PreflightView:
    row = await store.get(tx, preflight_id)
    if row is None:
        raise not_found("preflight", preflight_id)
    scope = Scope(tenant_id=row.tenant_id, project_id=row.project_id, app_slug=row.app_slug)
    caller.require(Permission.INSTANCE_READ, scope, "preflight", preflight_id)
    return row


async def get_preflight(tx: Transaction, caller: Caller, preflight_id: str) -> Preflight:
    return _to_model(await require_preflight(tx, caller, preflight_id))


async def preflight_deploy(tx: Transaction, caller: Caller, body: InstanceDeploy) -> Preflight:
    project = await require_project(tx, caller, body.project_id, Permission.INSTANCE_DEPLOY)
    manifest: Manifest | None = None
    findings: list[Finding] = []
    allocation_ids: list[str] = []
    try:
        version = await deployable_version(tx, caller, project.tenant_id, body.app_slug, body.version)
        manifest = manifest_of_version(version)
    except Refusal as refusal:
        findings.append(problem("version_unavailable", refusal.detail, "/app_slug", "choose from the catalogue"))
    if manifest is not None:
        plan = await check_deploy(tx, project.tenant_id, body, manifest, lock=False)
        findings += plan.findings
        # A machine that another app lives on is none of this app's business.
        used = {member.allocation_id for member in await instance_store.list_live_on(tx, list(plan.allocations))}
        allocation_ids = sorted(set(plan.allocations) - used)
    subject = PreflightSubject(
        project_id=body.project_id,
        instance_id=None,
        app_slug=body.app_slug,
        version=manifest.version if manifest else body.version,
        kind=Kind.DEPLOY.value,
        request=body.model_dump(mode="json"),
    )
    return await _make(tx, subject, project.tenant_id, manifest, findings, allocation_ids, body.operator_account_id)


InstanceRequest = OperationCreate | MembersAdd | MemberOperationsCreate
Ask = Callable[[Transaction, Caller, str, InstanceRequest], Awaitable[Resource]]
"""Makes the request itself."""


async def preflight_instance(
    tx: Transaction, caller: Caller, instance_id: str, body: InstanceRequest, ask: Ask
) -> Preflight:
    """Make the request and take it back: what would refuse it is what is found."""
    instance = await require_instance(tx, caller, instance_id, Permission.OPERATION_REQUEST)
    manifest = manifest_of(instance)
    findings: list[Finding] = []
    async with tx.dry_run():
        try:
            findings += _of_answer(await ask(tx, caller, instance_id, body), body)
        except Refusal as refusal:
            findings += _of_refusal(refusal)
    subject = PreflightSubject(
        project_id=instance.project_id,
        instance_id=instance_id,
        app_slug=instance.app_slug,
        version=manifest.version,
        kind=Kind.ADD.value if isinstance(body, MembersAdd) else body.kind,
        request=body.model_dump(mode="json"),
    )
    machines = await _machines_of(tx, instance, manifest, body)
    operator_id = instance.operator_account_id
    return await _make(tx, subject, instance.tenant_id, manifest, findings, machines, operator_id)


def _of_refusal(refusal: Refusal) -> list[Finding]:
    action = "; ".join(action.title for action in refusal.allowed_actions)
    errors = refusal.errors or [FieldError(pointer="", detail=refusal.detail)]
    return [problem(refusal.code.value, error.detail, error.pointer, action) for error in errors]


def _of_answer(answer: Resource, body: InstanceRequest) -> list[Finding]:
    """A request for many may be accepted and still be refused for some."""
    name = "allocation_ids" if isinstance(body, MembersAdd) else "member_ids"
    refused = [(n, result.refused) for n, result in enumerate(getattr(answer, "results", [])) if result.refused]
    return [
        Finding(
            severity=Severity.WARNING,
            code=found.code.value,
            message=found.detail,
            pointer=f"/{name}/{number}",
            action="; ".join(action.title for action in found.allowed_actions),
        )
        for number, found in refused
    ]


async def _machines_of(tx: Transaction, instance: InstanceView, manifest: Manifest, body: InstanceRequest) -> list[str]:
    """List those that the operation itself would be on: named ones, its members', and the primary component's."""
    members = await instance_store.list_live(tx, instance.id)
    wanted = {member.allocation_id for member in members if member.component_key == manifest.primary.key}
    named: set[str] = set()
    if isinstance(body, MembersAdd):
        named = set(body.allocation_ids)
    elif isinstance(body, MemberOperationsCreate):
        wanted |= {member.allocation_id for member in members if member.id in body.member_ids}
    else:
        named = {body.input["allocation_id"]} if isinstance(body.input.get("allocation_id"), str) else set()
        wanted |= {member.allocation_id for member in members if body.member_id in {None, member.id}}
    used = {
        user.allocation_id
        for user in await instance_store.list_live_on(tx, sorted(named))
        if user.instance_id != instance.id
    }
    return sorted(wanted | (named - used))


async def _make(
    tx: Transaction,
    subject: PreflightSubject,
    tenant_id: str,
    manifest: Manifest | None,
    findings: list[Finding],
    allocation_ids: list[str],
    operator_id: str | None,
) -> Preflight:
    absent = await find_controller(tx, subject.app_slug, tenant_id, subject.project_id, operator_id)
    if absent is not None and absent not in findings:
        findings.append(absent)
    named = await allocation_store.list_by_ids(tx, allocation_ids, lock=False)
    machines = [row for row in reach_observable(named)[0] if row.project_id == subject.project_id]
    declared = manifest.operation(Kind.PREFLIGHT) if manifest is not None else None
    if declared is None:
        checks = AppChecks.NOT_DECLARED if manifest is not None else AppChecks.NOT_RUN
    else:
        checks = AppChecks.RUNNING if absent is None else AppChecks.NOT_RUN
        findings += _unseen(set(allocation_ids) - {row.id for row in machines})
    machine_ids = [row.id for row in machines]
    seconds = LONGEST_SECONDS if declared is None else min(declared.deadline_seconds, LONGEST_SECONDS)
    made = await _insert(tx, subject, machine_ids, checks, findings, seconds)
    await tx.audit("preflight.create", made.id, project_id=subject.project_id, detail={"kind": subject.kind})
    return _to_model(made)


async def begin_gate(
    tx: Transaction, instance: InstanceRecord, manifest: Manifest, deadline_seconds: int
) -> PreflightRecord:
    """Ask for the app's own checks of all machines of a deploy, which does not begin before they are done. Other than
    a preflight that people ask for, it waits for a controller as long as the deploy would."""
    placements = [Placement.model_validate(placement) for placement in instance.placement_intent]
    request = InstanceDeploy(
        project_id=instance.project_id,
        app_slug=instance.app_slug,
        version=manifest.version,
        name=instance.name,
        mode=instance.mode,
        inputs=instance.inputs,
        placement_intent=placements,
        operator_account_id=instance.operator_account_id,
    )
    subject = PreflightSubject(
        project_id=instance.project_id,
        instance_id=instance.id,
        app_slug=instance.app_slug,
        version=manifest.version,
        kind=Kind.DEPLOY.value,
        request=request.model_dump(mode="json"),
    )
    wanted = sorted({placement.allocation_id for placement in placements})
    named = await allocation_store.list_by_ids(tx, wanted, lock=False)
    machines = [row.id for row in reach_observable(named)[0]]
    findings = _unseen(set(wanted) - set(machines))
    return await _insert(tx, subject, machines, AppChecks.RUNNING, findings, deadline_seconds)


async def _insert(
    tx: Transaction,
    subject: PreflightSubject,
    allocation_ids: list[str],
    checks: AppChecks,
    findings: list[Finding],
    seconds: int,
) -> PreflightRecord:
    """Insert a preflight, and the operation in which the app looks where its checks run."""
    made = await store.insert(tx, ids.new_id(ids.PREFLIGHT), subject, allocation_ids, checks, findings)
    if checks == AppChecks.RUNNING:
        operation = await store.insert_operation(tx, ids.new_id(ids.OPERATION), made, seconds)
        made = replace(made, operation_id=operation.id)
        message = f"look before {subject.kind}"
        scope = {"project_id": subject.project_id, "app_slug": subject.app_slug}
        await tx.changed(OperationEvent.REQUESTED, operation, message=message, **scope)
    await tell(tx, made, PreflightEvent.CREATED, f"preflight of {subject.kind}")
    return made


def _unseen(allocation_ids: set[str]) -> list[Finding]:
    message = "the app's checks cannot look at {}: it is not active, or has no observer as an external machine has none"
    return [
        Finding(severity=Severity.WARNING, code="not_observable", message=message.format(id))
        for id in sorted(allocation_ids)
    ]
