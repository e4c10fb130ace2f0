"""Nodes, join tokens, and the tasks that agents carry out."""

from typing import Any

from gpuaas_platform.storage.database import Row, Transaction
from gpuaas_platform.storage.wakeups import NODE_TASKS

_ALLOCATED = """
    SELECT n.*, coalesce(a.cpus, 0) AS cpus, coalesce(a.memory_mib, 0) AS memory_mib,
           coalesce(a.disk_gib, 0) AS disk_gib, coalesce(a.gpus, 0) AS gpus
    FROM nodes n LEFT JOIN (
        SELECT node_id, sum((shape->>'cpus')::int) AS cpus, sum((shape->>'memory_mib')::int) AS memory_mib,
               sum((shape->>'disk_gib')::int) AS disk_gib, sum((shape->>'gpus')::int) AS gpus
        FROM allocations WHERE status <> 'released' AND node_id IS NOT NULL GROUP BY node_id
    ) a ON a.node_id = n.id
"""


async def insert_join_token(tx: Transaction, id: str, node_name: str, token_hash: str, minutes: int) -> Row:
    row = await tx.one(
        """INSERT INTO join_tokens (id, node_name, token_hash, expires_at)
           VALUES (%(id)s, %(name)s, %(hash)s, now() + make_interval(mins => %(minutes)s)) RETURNING *""",
        id=id,
        name=node_name,
        hash=token_hash,
        minutes=minutes,
    )
    assert row is not None
    return row


async def lock_join_token(tx: Transaction, token_hash: str) -> Row | None:
    return await tx.one(
        "SELECT *, expires_at > now() AS valid FROM join_tokens WHERE token_hash = %(hash)s FOR UPDATE",
        hash=token_hash,
    )


async def mark_join_token_used(tx: Transaction, id: str, node_id: str) -> None:
    await tx.run("UPDATE join_tokens SET used_by_node_id = %(node)s WHERE id = %(id)s", id=id, node=node_id)


async def insert(tx: Transaction, id: str, name: str, public_key_pem: str) -> Row | None:
    return await tx.one(
        """INSERT INTO nodes (id, name, public_key_pem, status)
           VALUES (%(id)s, %(name)s, %(key)s, 'enrolling') ON CONFLICT DO NOTHING RETURNING *""",
        id=id,
        name=name,
        key=public_key_pem,
    )


async def get(tx: Transaction, id: str) -> Row | None:
    return await tx.one(_ALLOCATED + " WHERE n.id = %(id)s", id=id)


async def list_all(tx: Transaction, after: str, limit: int) -> list[Row]:
    return await tx.all(_ALLOCATED + " WHERE n.id > %(after)s ORDER BY n.id LIMIT %(limit)s", after=after, limit=limit)


async def lock_ready(tx: Transaction) -> list[Row]:
    """Nodes that can take allocations, locked in one order, so that claims on a node never race."""
    await tx.all("SELECT id FROM nodes WHERE status = 'ready' ORDER BY id FOR UPDATE")
    return await tx.all(_ALLOCATED + " WHERE n.status = 'ready' ORDER BY n.id")


async def set_status(tx: Transaction, id: str, status: str, inventory: dict[str, Any] | None = None) -> Row | None:
    """None where the node had that status, and the same inventory, already."""
    return await tx.one(
        """UPDATE nodes SET status = %(status)s, inventory = coalesce(%(inventory)s, inventory),
               last_seen_at = CASE WHEN %(status)s = 'ready' THEN now() ELSE last_seen_at END,
               revision = revision + 1, updated_at = now()
           WHERE id = %(id)s
             AND (status <> %(status)s OR inventory IS DISTINCT FROM coalesce(%(inventory)s, inventory))
           RETURNING *""",
        id=id,
        status=status,
        inventory=inventory,
    )


async def set_link(tx: Transaction, id: str, link_id: str) -> None:
    """Remember which connection is the newest: only its end makes the node offline."""
    await tx.run("UPDATE nodes SET link_id = %(link)s, last_seen_at = now() WHERE id = %(id)s", id=id, link=link_id)


async def has_link(tx: Transaction, id: str, link_id: str) -> bool:
    row = await tx.one("SELECT 1 FROM nodes WHERE id = %(id)s AND link_id = %(link)s FOR UPDATE", id=id, link=link_id)
    return row is not None


async def touch(tx: Transaction, id: str) -> None:
    await tx.run("UPDATE nodes SET last_seen_at = now() WHERE id = %(id)s", id=id)


async def list_silent(tx: Transaction, seconds: int) -> list[Row]:
    return await tx.all(
        """SELECT * FROM nodes WHERE status = 'ready'
             AND last_seen_at < now() - make_interval(secs => %(seconds)s) FOR UPDATE SKIP LOCKED""",
        seconds=seconds,
    )


async def insert_task(
    tx: Transaction, id: str, node_id: str, allocation_id: str, spec: dict[str, Any], correlation_id: str
) -> None:
    await tx.run(
        """INSERT INTO node_tasks (id, node_id, allocation_id, spec, correlation_id)
           VALUES (%(id)s, %(node)s, %(allocation)s, %(spec)s, %(correlation)s)""",
        id=id,
        node=node_id,
        allocation=allocation_id,
        spec=spec,
        correlation=correlation_id,
    )
    await tx.notify(NODE_TASKS, node_id)


async def list_open_tasks(tx: Transaction, node_id: str) -> list[Row]:
    return await tx.all(
        "SELECT * FROM node_tasks WHERE node_id = %(node)s AND state = 'queued' ORDER BY id", node=node_id
    )


async def lock_task(tx: Transaction, id: str, node_id: str) -> Row | None:
    return await tx.one(
        "SELECT * FROM node_tasks WHERE id = %(id)s AND node_id = %(node)s FOR UPDATE", id=id, node=node_id
    )


async def finish_task(tx: Transaction, id: str, state: str) -> None:
    await tx.run("UPDATE node_tasks SET state = %(state)s, ended_at = now() WHERE id = %(id)s", id=id, state=state)


async def cancel_tasks(tx: Transaction, allocation_id: str) -> None:
    """A release makes everything that was still to be done on the machine pointless."""
    await tx.run(
        """UPDATE node_tasks SET state = 'cancelled', ended_at = now()
           WHERE allocation_id = %(id)s AND state = 'queued'""",
        id=allocation_id,
    )
