"""Principals that end: who may log in to which machine for as long as a lease lasts, or a role, and whether its node
knows."""

from collections.abc import Sequence
from typing import LiteralString

from gpuaas_platform.access.records import LeasePrincipalRecord, UntoldMachine
from gpuaas_platform.core.database import Row, Transaction
from gpuaas_platform.core.wakeups import LEASES, NODE_TASKS


async def _wake_nodes(tx: Transaction, changed: Sequence[Row]) -> None:
    """Have the nodes of these machines told."""
    if not changed:
        return
    nodes = await tx.all(
        "SELECT DISTINCT node_id FROM allocations WHERE id = ANY(%(ids)s) AND node_id IS NOT NULL",
        ids=[row["allocation_id"] for row in changed],
    )
    for node in nodes:
        await tx.notify(NODE_TASKS, node["node_id"])


async def open_for(
    tx: Transaction,
    principal: str,
    login: str,
    allocation_ids: Sequence[str],
    *,
    operation_id: str | None = None,
    reconciled_instance_id: str | None = None,
) -> None:
    """Let the principal in on exactly these machines. Nodes are told of what is new, and of what is no more."""
    changed = await tx.all(
        """WITH gone AS (
               DELETE FROM lease_principals
               WHERE principal = %(principal)s AND allocation_id <> ALL(%(allocations)s::text[])
               RETURNING allocation_id),
           added AS (
               INSERT INTO lease_principals (allocation_id, principal, login, account_id, operation_id,
                                             reconciled_instance_id)
               SELECT id, %(principal)s, %(login)s, %(account)s, %(operation)s, %(instance)s
               FROM unnest(%(allocations)s::text[]) AS id ORDER BY id
               ON CONFLICT DO NOTHING RETURNING allocation_id)
           SELECT * FROM gone UNION ALL SELECT * FROM added""",
        principal=principal,
        login=login,
        account=tx.principal_id,
        operation=operation_id,
        instance=reconciled_instance_id,
        allocations=list(allocation_ids),
    )
    await _wake_nodes(tx, changed)


async def open_for_role(tx: Transaction, principal: str, login: str, allocation_id: str) -> None:
    """Let somebody in on this machine, beside others, until the role behind it ends. A certificate that has expired
    opens nothing, so that the principal may stay."""
    changed = await tx.all(
        """INSERT INTO lease_principals (allocation_id, principal, login, account_id)
           VALUES (%(allocation)s, %(principal)s, %(login)s, %(account)s)
           ON CONFLICT DO NOTHING RETURNING allocation_id""",
        allocation=allocation_id,
        principal=principal,
        login=login,
        account=tx.principal_id,
    )
    await _wake_nodes(tx, changed)


async def close_of_operation(tx: Transaction, operation_id: str) -> None:
    query: LiteralString = "DELETE FROM lease_principals WHERE operation_id = %(id)s RETURNING allocation_id"
    await _wake_nodes(tx, await tx.all(query, id=operation_id))


async def close_of_reconcile(tx: Transaction, instance_id: str) -> None:
    query: LiteralString = "DELETE FROM lease_principals WHERE reconciled_instance_id = %(id)s RETURNING allocation_id"
    await _wake_nodes(tx, await tx.all(query, id=instance_id))


async def close_of_account(tx: Transaction, account_id: str, project_id: str | None = None) -> None:
    """Everywhere, or in one project."""
    changed = await tx.all(
        """DELETE FROM lease_principals p USING allocations a
           WHERE p.account_id = %(id)s AND a.id = p.allocation_id
             AND (%(project)s::text IS NULL OR a.project_id = %(project)s) RETURNING p.allocation_id""",
        id=account_id,
        project=project_id,
    )
    await _wake_nodes(tx, changed)


async def close_expired(tx: Transaction) -> None:
    """Shut out the holders of leases that have run out, and forget machines that are gone. Roles do not run out."""
    changed = await tx.all(
        """WITH over AS (
               SELECT p.allocation_id, p.principal FROM lease_principals p
               JOIN allocations a ON a.id = p.allocation_id
               LEFT JOIN operations o ON o.id = p.operation_id
               LEFT JOIN reconcile_leases r ON r.instance_id = p.reconciled_instance_id
               WHERE a.status IN ('releasing', 'released', 'failed')
                  OR (coalesce(p.operation_id, p.reconciled_instance_id) IS NOT NULL
                      AND coalesce(o.lease_expires_at, r.expires_at, '-infinity') < now())
               FOR UPDATE OF p SKIP LOCKED)
           DELETE FROM lease_principals p USING over
           WHERE p.allocation_id = over.allocation_id AND p.principal = over.principal
           RETURNING p.allocation_id"""
    )
    await _wake_nodes(tx, changed)


async def list_of_node(tx: Transaction, node_id: str) -> list[LeasePrincipalRecord]:
    return await tx.fetch_all(
        LeasePrincipalRecord,
        """SELECT p.*, p.told_at IS NOT NULL AS told
           FROM lease_principals p JOIN allocations a ON a.id = p.allocation_id
           WHERE a.node_id = %(node)s AND a.status = 'active' ORDER BY p.allocation_id, p.principal""",
        node=node_id,
    )


async def list_untold(tx: Transaction, principal: str, allocation_id: str | None = None) -> list[UntoldMachine]:
    """List the machines, all or one, that do not let the principal in yet, though their node is there to be told."""
    return await tx.fetch_all(
        UntoldMachine,
        """SELECT a.name, n.name AS node_name
           FROM lease_principals p JOIN allocations a ON a.id = p.allocation_id JOIN nodes n ON n.id = a.node_id
           WHERE p.principal = %(principal)s AND p.told_at IS NULL AND a.status = 'active'
             AND (%(allocation)s::text IS NULL OR a.id = %(allocation)s)
             AND n.status IN ('ready', 'cordoned', 'draining') ORDER BY a.name""",
        principal=principal,
        allocation=allocation_id,
    )


async def set_told(tx: Transaction, told: Sequence[tuple[str, str]]) -> None:
    """Note that machines let principals in: pairs of an allocation and a principal."""
    await tx.run(
        """UPDATE lease_principals p SET told_at = now()
           FROM unnest(%(allocations)s::text[], %(principals)s::text[]) AS told (allocation_id, principal)
           WHERE p.allocation_id = told.allocation_id AND p.principal = told.principal AND p.told_at IS NULL""",
        allocations=[allocation_id for allocation_id, _ in told],
        principals=[principal for _, principal in told],
    )
    await tx.notify(LEASES)


async def forget_told(tx: Transaction, node_id: str) -> None:
    """An agent that was away may have shut everybody out by itself: it is told anew."""
    await tx.run(
        """UPDATE lease_principals p SET told_at = NULL FROM allocations a
           WHERE a.id = p.allocation_id AND a.node_id = %(node)s AND p.told_at IS NOT NULL""",
        node=node_id,
    )
