"""Deploying an app: instance, members and operations in one transaction."""

from collections.abc import Mapping, Sequence

from gpuaas_contract import ids
from gpuaas_contract.base import JsonObject
from gpuaas_contract.events import InstanceEvent, MemberEvent, OperationEvent
from gpuaas_contract.instances import Instance, InstanceDeploy, Placement
from gpuaas_contract.manifest import Manifest
from gpuaas_contract.operations import Kind
from gpuaas_contract.problems import Code
from gpuaas_platform.allocations.records import AllocationRecord
from gpuaas_platform.catalogue.service.versions import deployable_version, manifest_of_version
from gpuaas_platform.core.checks import Check
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import Refusal
from gpuaas_platform.identity.rules.policy import Caller, Permission
from gpuaas_platform.identity.service.tenants import require_project
from gpuaas_platform.instances.records import InstanceRecord, NewInstance, NewMember, PreflightRecord
from gpuaas_platform.instances.rules.gates import gate_step
from gpuaas_platform.instances.service.deploy_checks import check_deploy, name_taken, refusal_of, refuse_errors
from gpuaas_platform.instances.service.inputs import check_inputs, check_of
from gpuaas_platform.instances.service.instances import reread, to_model
from gpuaas_platform.instances.service.preflights import LONGEST_SECONDS, begin_gate
from gpuaas_platform.instances.storage import instances as store
from gpuaas_platform.operations.records import NewOperation
from gpuaas_platform.operations.storage import operations as operation_store


async def deploy_instance(tx: Transaction, caller: Caller, body: InstanceDeploy) -> Instance:
    """Make instance, members and operations together or not at all."""
    project = await require_project(tx, caller, body.project_id, Permission.INSTANCE_DEPLOY)
    version = await deployable_version(tx, caller, project.tenant_id, body.app_slug, body.version)
    manifest = manifest_of_version(version)
    tx.need_verdicts(_checks_of(project.tenant_id, manifest, body))
    plan = await check_deploy(tx, project.tenant_id, body, manifest, lock=True)
    refuse_errors(plan.findings)
    wanted = NewInstance(
        id=ids.new_id(ids.INSTANCE),
        project_id=body.project_id,
        app_slug=manifest.slug,
        app_version_id=version.id,
        name=body.name,
        mode=plan.mode,
        inputs=plan.inputs,
        placement_intent=body.placement_intent,
        access_credential_id=None if body.access is None else body.access.credential_id,
        operator_account_id=body.operator_account_id,
    )
    row = await store.insert(tx, wanted)
    if row is None:
        raise refusal_of([name_taken(body.name)])
    await tx.audit("app_instance.deploy", row.id, project_id=body.project_id)
    await tx.changed(InstanceEvent.CREATED, row, project_id=row.project_id, instance_id=row.id)
    # The primary member first: its operation is the deploy, the others join it.
    ordered = sorted(body.placement_intent, key=lambda placement: placement.component_key != manifest.primary.key)
    gate = None
    if manifest.operation(Kind.PREFLIGHT) is not None and not body.skip_preflight:
        deploying = manifest.operation(Kind.DEPLOY, manifest.primary.key)
        gate = await begin_gate(tx, row, manifest, deploying.deadline_seconds if deploying else LONGEST_SECONDS)
    await _insert_members(tx, project.tenant_id, row, manifest, ordered, plan.allocations, gate)
    return to_model(await reread(tx, row.id))


def _kind_of(manifest: Manifest, component_key: str) -> Kind:
    return Kind.DEPLOY if component_key == manifest.primary.key else Kind.ADD


def _checks_of(tenant_id: str, manifest: Manifest, body: InstanceDeploy) -> list[Check]:
    """List all that a deploy is going to ask for, so that it begins again once and not for each."""
    checks = [check_of(tenant_id, body.inputs, manifest.inputs, "/inputs")]
    for key in {placement.component_key for placement in body.placement_intent}:
        if (declared := manifest.operation(_kind_of(manifest, key), key)) is not None:
            checks.append(check_of(tenant_id, {}, declared.input_schema, "/input"))
    return checks


async def _insert_members(
    tx: Transaction,
    tenant_id: str,
    instance: InstanceRecord,
    manifest: Manifest,
    placements: Sequence[Placement],
    allocations: Mapping[str, AllocationRecord],
    gate: PreflightRecord | None,
) -> None:
    """Insert all members and their operations with a few statements, however many there are."""
    members, requested = [], []
    inputs: dict[tuple[str, str], JsonObject] = {}
    for placement in placements:
        kind = _kind_of(manifest, placement.component_key)
        declared = manifest.operation(kind, placement.component_key)
        if declared is None:
            raise Refusal(Code.INVALID_REQUEST, f"{manifest.slug} {manifest.version} has no operation {kind.value!r}")
        key = (kind, placement.component_key)
        if key not in inputs:
            inputs[key] = check_inputs(tx, tenant_id, {}, declared.input_schema, "/input")
        member_id, operation_id = ids.new_id(ids.MEMBER), ids.new_id(ids.OPERATION)
        members.append(
            NewMember(
                id=member_id,
                component_key=placement.component_key,
                allocation_id=placement.allocation_id,
                node_id=allocations[placement.allocation_id].node_id,
                operation_id=operation_id,
                access_credential_id=None if placement.access is None else placement.access.credential_id,
            )
        )
        requested.append(
            NewOperation(
                id=operation_id,
                kind=kind.value,
                input=inputs[key],
                deadline_seconds=declared.deadline_seconds,
                member_id=member_id,
                queued=gate is not None,
                gate_preflight_id=None if gate is None else gate.id,
            )
        )
    scope = {"project_id": instance.project_id, "instance_id": instance.id}
    for member in await store.insert_members(tx, instance.id, members):
        await tx.changed(MemberEvent.CREATED, member, **scope)
    event = OperationEvent.REQUESTED if gate is None else OperationEvent.QUEUED
    for operation in await operation_store.insert_together(tx, instance, requested):
        if gate is not None and operation.kind == Kind.DEPLOY:
            operation = await operation_store.report_step(tx, operation, gate_step(gate), attempt=1)
        await tx.changed(event, operation, message=f"{operation.kind} {event.value}", **scope)
