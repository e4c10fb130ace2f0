"""App instances and their members, as they are read."""

from gpuaas_contract.events import InstanceEvent, SecretEvent
from gpuaas_contract.instances import (
    DesiredState,
    Instance,
    InstanceOperator,
    InstancePage,
    Member,
    MemberPage,
    Versions,
)
from gpuaas_platform.catalogue.service.versions import manifest_of
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.errors import not_found
from gpuaas_platform.core.pages import cut_page, decode_cursor
from gpuaas_platform.core.records import to_wire
from gpuaas_platform.identity.rules.operators import operator_finding, operator_state
from gpuaas_platform.identity.rules.policy import Caller, Permission, Scope
from gpuaas_platform.identity.service.tenants import visible_projects
from gpuaas_platform.instances.records import InstanceRecord, InstanceSummary, InstanceView, MemberView
from gpuaas_platform.instances.rules.actions import InstanceFacts, instance_actions, member_actions
from gpuaas_platform.instances.rules.instances import derive_status, shown_conditions, status_reason, version_drift
from gpuaas_platform.instances.rules.ports import port_notes
from gpuaas_platform.instances.service.reconcile_ends import end_lease
from gpuaas_platform.instances.storage import instances as store
from gpuaas_platform.secrets.storage import secrets as secret_store
from gpuaas_platform.vault.storage import versions as version_store


def facts_of(row: InstanceView | InstanceSummary) -> InstanceFacts:
    return InstanceFacts.of(row, manifest_of(row))


def to_model(row: InstanceView) -> Instance:
    status = derive_status(row)
    manifest = manifest_of(row)
    versions = Versions(
        app=row.app_version,
        expected_runtime=f"{manifest.runtime.name} {manifest.runtime.version}",
        observed_runtime=row.observed_runtime,
        app_status=row.app_status,
        app_status_reason=row.app_status_reason,
    )
    drift = version_drift(manifest.runtime, row.observed_runtime, row.generation)
    return to_wire(
        Instance,
        row,
        status=status,
        reason=status_reason(row, status),
        versions=versions,
        operator=_operator_of(row),
        conditions=shown_conditions(row, drift),
        access_notes=(*row.access_notes, *port_notes(row, status, manifest)),
        allowed_actions=instance_actions(InstanceFacts.of(row, manifest)),
    )


def _operator_of(row: InstanceView) -> InstanceOperator | None:
    if row.operator_account_id is None:
        return None
    finding = operator_finding(row.operator_account_id, row.operator, row.app_slug)
    return InstanceOperator(
        account_id=row.operator_account_id,
        name=None if row.operator is None else row.operator.name,
        state=operator_state(row.operator),
        seen_at=None if row.operator is None else row.operator.seen_at,
        message="" if finding is None else f"{finding.message}; {finding.action}",
    )


async def require_instance(
    tx: Transaction, caller: Caller, instance_id: str, permission: Permission, *, lock: bool = False
) -> InstanceView:
    row = await (store.lock if lock else store.get)(tx, instance_id)
    if row is None:
        raise not_found("app instance", instance_id)
    scope = Scope(tenant_id=row.tenant_id, project_id=row.project_id, app_slug=row.app_slug)
    caller.require(permission, scope, "app instance", instance_id, operator_id=row.operator_account_id)
    return row


async def reread(tx: Transaction, instance_id: str) -> InstanceView:
    row = await store.get(tx, instance_id)
    assert row is not None
    return row


async def get_instance(tx: Transaction, caller: Caller, instance_id: str) -> Instance:
    return to_model(await require_instance(tx, caller, instance_id, Permission.INSTANCE_READ))


async def list_instances(
    tx: Transaction, caller: Caller, project_id: str | None, cursor: str | None, limit: int
) -> InstancePage:
    projects = await visible_projects(tx, caller, project_id, Permission.INSTANCE_READ)
    rows = await store.list_matching(tx, projects, caller.only_app, decode_cursor(cursor), limit + 1)
    rows, after = cut_page(rows, limit)
    return InstancePage(items=[to_model(row) for row in rows], next_cursor=after)


def to_member(row: MemberView, facts: InstanceFacts, generation: int) -> Member:
    conditions = row.conditions
    if row.observed_runtime is not None:
        conditions = (*conditions, version_drift(facts.manifest.runtime, row.observed_runtime, generation))
    return to_wire(Member, row, conditions=conditions, allowed_actions=member_actions(facts, row))


async def list_members(
    tx: Transaction, caller: Caller, instance_id: str, removed: bool | None, cursor: str | None, limit: int
) -> MemberPage:
    instance = await require_instance(tx, caller, instance_id, Permission.INSTANCE_READ)
    rows = await store.list_members(tx, instance_id, removed, decode_cursor(cursor), limit + 1)
    rows, after = cut_page(rows, limit)
    facts = facts_of(instance)
    members = [to_member(row, facts, instance.generation) for row in rows]
    return MemberPage(items=members, next_cursor=after)


async def require_member(tx: Transaction, caller: Caller, member_id: str, permission: Permission) -> MemberView:
    """Refuse in the member's own name: whoever may not know of it must not learn which instance it is in."""
    row = await store.get_member(tx, member_id)
    if row is None:
        raise not_found("member", member_id)
    scope = Scope(tenant_id=row.tenant_id, project_id=row.project_id, app_slug=row.app_slug)
    caller.require(permission, scope, "member", member_id, operator_id=row.operator_account_id)
    return row


async def get_member(tx: Transaction, caller: Caller, member_id: str) -> Member:
    row = await require_member(tx, caller, member_id, Permission.INSTANCE_READ)
    instance = await reread(tx, row.instance_id)
    return to_member(row, facts_of(instance), instance.generation)


async def end_if_gone(tx: Transaction, instance_id: str) -> None:
    """End a decommissioned instance that has no member left, and free its name."""
    row = await store.lock(tx, instance_id)
    assert row is not None
    if row.desired_state == DesiredState.DECOMMISSIONED and not row.live_statuses and row.ended_at is None:
        ended = await store.end(tx, instance_id)
        await tx.changed(InstanceEvent.DECOMMISSIONED, ended, project_id=row.project_id, instance_id=instance_id)
        await end_lease(tx, ended, "the instance is decommissioned")
        await _end_secrets(tx, ended)


async def _end_secrets(tx: Transaction, instance: InstanceRecord) -> None:
    """They are never delivered again; the sweeper destroys their values."""
    scope = {"project_id": instance.project_id, "instance_id": instance.id}
    for secret in await secret_store.end_of_instance(tx, instance.id):
        await version_store.end(tx, secret.id)
        await tx.changed(SecretEvent.DELETED, secret, **scope)
        detail = {"name": secret.name, "instance": instance.id}
        await tx.audit("secret.delete", secret.id, project_id=instance.project_id, detail=detail)
