"""App instances and their members, as they are read."""

from gpuaas_contract.instances import (
    DesiredState,
    Instance,
    InstancePage,
    InstanceStatus,
    Member,
    MemberPage,
    MemberStatus,
    Versions,
)
from gpuaas_platform.domain.errors import not_found
from gpuaas_platform.domain.instances import derive_status, instance_actions
from gpuaas_platform.domain.policy import Caller, Permission, Scope
from gpuaas_platform.services.catalogue import manifest_of
from gpuaas_platform.services.identity import visible_projects
from gpuaas_platform.services.pages import cut_page, decode_cursor
from gpuaas_platform.services.reconcile_ends import end_lease
from gpuaas_platform.storage import instances as store
from gpuaas_platform.storage import secret_versions as version_store
from gpuaas_platform.storage import secrets as secret_store
from gpuaas_platform.storage.database import Row, Transaction


def to_model(row: Row) -> Instance:
    status = derive_status(row, row["member_statuses"], row["last_states"])
    manifest = manifest_of(row)
    versions = Versions(
        app=row["app_version"],
        expected_runtime=f"{manifest.runtime.name} {manifest.runtime.version}",
        observed_runtime=row["observed_runtime"],
    )
    troubled = status in {InstanceStatus.FAILED, InstanceStatus.DEGRADED}
    reason = (row["last_failure"] or "") if troubled else ""
    derived = {
        "status": status,
        "reason": reason,
        "versions": versions,
        "allowed_actions": instance_actions(row, status),
    }
    return Instance.model_validate({**row, **derived})


async def require_instance(
    tx: Transaction, caller: Caller, instance_id: str, permission: Permission, *, lock: bool = False
) -> Row:
    row = await (store.lock if lock else store.get)(tx, instance_id)
    if row is None:
        raise not_found("app instance", instance_id)
    scope = Scope(tenant_id=row["tenant_id"], project_id=row["project_id"], app_slug=row["app_slug"])
    caller.require(permission, scope, "app instance", instance_id)
    return row


async def reread(tx: Transaction, instance_id: str) -> Row:
    row = await store.get(tx, instance_id)
    assert row is not None
    return row


async def get_instance(tx: Transaction, caller: Caller, instance_id: str) -> Instance:
    return to_model(await require_instance(tx, caller, instance_id, Permission.INSTANCE_READ))


async def list_instances(
    tx: Transaction, caller: Caller, project_id: str | None, cursor: str | None, limit: int
) -> InstancePage:
    projects = await visible_projects(tx, caller, project_id, Permission.INSTANCE_READ)
    rows = await store.list_matching(tx, projects, decode_cursor(cursor), limit + 1)
    rows, after = cut_page(rows, limit)
    return InstancePage(items=[to_model(row) for row in rows], next_cursor=after)


async def list_members(tx: Transaction, caller: Caller, instance_id: str, cursor: str | None, limit: int) -> MemberPage:
    await require_instance(tx, caller, instance_id, Permission.INSTANCE_READ)
    rows, after = cut_page(await store.list_members(tx, instance_id, decode_cursor(cursor), limit + 1), limit)
    return MemberPage(items=[Member.model_validate(row) for row in rows], next_cursor=after)


async def require_member(tx: Transaction, caller: Caller, member_id: str, permission: Permission) -> Row:
    """Refused in the member's own name: whoever may not know of it must not learn which instance it is in."""
    row = await store.get_member(tx, member_id)
    if row is None:
        raise not_found("member", member_id)
    scope = Scope(tenant_id=row["tenant_id"], project_id=row["project_id"], app_slug=row["app_slug"])
    caller.require(permission, scope, "member", member_id)
    return row


async def get_member(tx: Transaction, caller: Caller, member_id: str) -> Member:
    return Member.model_validate(await require_member(tx, caller, member_id, Permission.INSTANCE_READ))


async def end_if_gone(tx: Transaction, instance_id: str) -> None:
    """After a decommission: when no member is left, the instance is over and its name free."""
    row = await store.lock(tx, instance_id)
    assert row is not None
    gone = all(status == MemberStatus.REMOVED for status in row["member_statuses"])
    if row["desired_state"] == DesiredState.DECOMMISSIONED and gone and row["ended_at"] is None:
        ended = await store.end(tx, instance_id)
        await tx.changed("instance", ended, "decommissioned", project_id=row["project_id"], instance_id=instance_id)
        await end_lease(tx, ended, "the instance is decommissioned")
        await _end_secrets(tx, ended)


async def _end_secrets(tx: Transaction, instance: Row) -> None:
    """They are never delivered again; the sweeper destroys their values."""
    scope = {"project_id": instance["project_id"], "instance_id": instance["id"]}
    for secret in await secret_store.end_of_instance(tx, instance["id"]):
        await version_store.end(tx, secret["id"])
        await tx.changed("secret", secret, "deleted", **scope)
        detail = {"name": secret["name"], "instance": instance["id"]}
        await tx.audit("secret.delete", secret["id"], project_id=instance["project_id"], detail=detail)
