"""Access grants."""

from typing import LiteralString

from gpuaas_contract.identity import PrincipalKind
from gpuaas_platform.access.records import AccessGrantRecord, AccessGrantView, NewAccessGrant
from gpuaas_platform.access.storage import leases
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.core.wakeups import ACCESS
from gpuaas_platform.identity.rules.policy import Caller


async def insert(tx: Transaction, id: str, new: NewAccessGrant) -> AccessGrantRecord:
    return await tx.fetch(
        AccessGrantRecord,
        """INSERT INTO access_grants (id, principal_id, project_id, owner_id, allocation_ids, login,
                                      operation_id, reconciled_instance_id, grant_id, member_id, port, expires_at)
           VALUES (%(id)s, %(principal)s, %(project)s, %(owner)s, %(allocations)s, %(login)s, %(operation)s,
                   %(reconciled)s, %(grant)s, %(member)s, %(port)s,
                   now() + make_interval(secs => %(seconds)s)) RETURNING *""",
        id=id,
        principal=tx.principal_id,
        project=new.project_id,
        owner=new.owner_id,
        allocations=new.allocation_ids,
        login=new.login,
        operation=new.operation_id,
        grant=new.grant_id,
        reconciled=new.reconciled_instance_id,
        member=None if new.tunnel is None else new.tunnel.member_id,
        port=None if new.tunnel is None else new.tunnel.name,
        seconds=new.seconds,
    )


async def get(tx: Transaction, id: str) -> AccessGrantView | None:
    return await tx.find(
        AccessGrantView,
        "SELECT *, ended_at IS NULL AND expires_at > now() AS open FROM access_grants WHERE id = %(id)s",
        id=id,
    )


async def find_tunnel(tx: Transaction, member_id: str, port: str) -> AccessGrantRecord | None:
    """Find the present access of the transaction's principal to a port: one serves many connections."""
    return await tx.find(
        AccessGrantRecord,
        """SELECT * FROM access_grants WHERE member_id = %(member)s AND port = %(port)s AND principal_id = %(principal)s
             AND ended_at IS NULL AND expires_at > now() ORDER BY expires_at DESC LIMIT 1""",
        member=member_id,
        port=port,
        principal=tx.principal_id,
    )


async def end_of_operation(tx: Transaction, operation_id: str) -> None:
    """The lease is gone, so is the access that it gave: streams are cut, and the machines refuse its certificates."""
    await leases.close_of_operation(tx, operation_id)
    if await tx.run(
        "UPDATE access_grants SET ended_at = now() WHERE operation_id = %(id)s AND ended_at IS NULL",
        id=operation_id,
    ):
        await tx.notify(ACCESS)


async def end_of_reconcile(tx: Transaction, instance_id: str) -> None:
    """The same for the reconcile lease of an instance."""
    await leases.close_of_reconcile(tx, instance_id)
    await tx.run(
        "UPDATE access_grants SET ended_at = now() WHERE reconciled_instance_id = %(id)s AND ended_at IS NULL",
        id=instance_id,
    )
    await tx.notify(ACCESS)


async def end_of_principal(tx: Transaction, principal_id: str, project_id: str | None = None) -> None:
    """Everywhere, or in one project: streams that are open are cut, and the machines refuse its certificates."""
    await leases.close_of_account(tx, principal_id, project_id)
    await tx.run(
        """UPDATE access_grants SET ended_at = now() WHERE principal_id = %(id)s AND ended_at IS NULL
             AND (%(project)s::text IS NULL OR project_id = %(project)s)""",
        id=principal_id,
        project=project_id,
    )
    await tx.notify(ACCESS)


async def roles_stand(tx: Transaction, caller: Caller) -> bool:
    """Whether the caller still is who the policy was asked about. Held until the transaction ends: whoever takes a role
    or disables an account waits for it, and then finds what was given by it."""
    if caller.kind == PrincipalKind.SERVICE_ACCOUNT:
        query: LiteralString = "SELECT 1 FROM service_accounts WHERE id = %(id)s AND NOT disabled FOR SHARE"
        return await tx.one(query, id=caller.id) is not None
    if await tx.one("SELECT 1 FROM users WHERE id = %(id)s AND NOT disabled FOR SHARE", id=caller.id) is None:
        return False
    rows = await tx.all(
        "SELECT role, tenant_id, project_id, app_slug FROM memberships WHERE user_id = %(id)s ORDER BY id FOR SHARE",
        id=caller.id,
    )
    held = {(row["role"], row["tenant_id"], row["project_id"], row["app_slug"]) for row in rows}
    return {(one.role, one.tenant_id, one.project_id, one.app_slug) for one in caller.grants} <= held


async def end_of_grant(tx: Transaction, grant_id: str) -> None:
    await tx.run("UPDATE access_grants SET ended_at = now() WHERE grant_id = %(id)s AND ended_at IS NULL", id=grant_id)
    await tx.notify(ACCESS)


async def end_of_member(tx: Transaction, member_id: str) -> None:
    """The member is removed: tunnels to it are cut."""
    if await tx.run(
        "UPDATE access_grants SET ended_at = now() WHERE member_id = %(id)s AND ended_at IS NULL", id=member_id
    ):
        await tx.notify(ACCESS)


async def list_ended(tx: Transaction, grant_ids: list[str]) -> set[str]:
    """Which of these may not be used any more. A lease or a grant that has expired ends what it gave, too; so
    does the end of the machine that a tunnel leads to."""
    rows = await tx.all(
        """SELECT g.id FROM access_grants g LEFT JOIN operations o ON o.id = g.operation_id
           LEFT JOIN reconcile_leases r ON r.instance_id = g.reconciled_instance_id
           LEFT JOIN grants p ON p.id = g.grant_id
           WHERE g.id = ANY(%(ids)s)
             AND (g.ended_at IS NOT NULL OR o.lease_expires_at < now() OR r.expires_at < now()
                  OR p.expires_at < now()
                  OR g.member_id IS NOT NULL AND EXISTS (
                      SELECT FROM allocations a WHERE a.id = ANY(g.allocation_ids) AND a.status <> 'active'))""",
        ids=grant_ids,
    )
    return {row["id"] for row in rows}
