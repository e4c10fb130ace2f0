"""Nodes, join tokens, and the tasks that agents carry out."""

from collections.abc import Sequence

from psycopg.types.json import Jsonb

from gpuaas_contract import ids
from gpuaas_contract.base import Resource
from gpuaas_contract.nodes import Inventory, NodeCondition, NodeDifference
from gpuaas_platform.allocations.records import AllocationRecord
from gpuaas_platform.core.database import Transaction, json_list
from gpuaas_platform.core.wakeups import NODE_TASKS
from gpuaas_platform.nodes.records import (
    EnrolledNode,
    JoinTokenRecord,
    JoinTokenView,
    NodeIdentity,
    NodeRecord,
    NodeTaskRecord,
    NodeView,
)

_WITH_USE = """
    FROM nodes n
    CROSS JOIN LATERAL (
        SELECT coalesce(array_agg(id ORDER BY id), '{}') AS ids,
               coalesce(sum(greatest((shape->>'cpus')::int, (wanted_shape->>'cpus')::int)), 0) AS cpus,
               coalesce(sum(greatest((shape->>'memory_mib')::int, (wanted_shape->>'memory_mib')::int)), 0)
                   AS memory_mib,
               coalesce(sum(greatest((shape->>'disk_gib')::int, (wanted_shape->>'disk_gib')::int)), 0) AS disk_gib,
               coalesce(sum(greatest((shape->>'gpus')::int, (wanted_shape->>'gpus')::int)), 0) AS gpus
        FROM allocations WHERE node_id = n.id AND status <> 'released'
    ) a
    CROSS JOIN LATERAL (
        SELECT coalesce(array_agg(id ORDER BY id), '{}') AS ids, coalesce(array_agg(name ORDER BY id), '{}') AS names,
               coalesce(sum(size_gib), 0) AS disk_gib
        FROM volumes WHERE node_id = n.id AND status <> 'deleted'
    ) v
"""
"""Nodes (n) with what machines (a) and volumes (v) take of them."""

_ALLOCATED = (
    """
    SELECT n.*, a.ids AS allocation_ids,
           a.cpus, a.memory_mib, a.disk_gib + v.disk_gib AS disk_gib, a.gpus,
           v.ids AS volume_ids, v.names AS volume_names"""
    + _WITH_USE
)


async def insert_join_token(tx: Transaction, id: str, node_name: str, token_hash: str, minutes: int) -> JoinTokenRecord:
    return await tx.fetch(
        JoinTokenRecord,
        """INSERT INTO join_tokens (id, node_name, token_hash, expires_at)
           VALUES (%(id)s, %(name)s, %(hash)s, now() + make_interval(mins => %(minutes)s)) RETURNING *""",
        id=id,
        name=node_name,
        hash=token_hash,
        minutes=minutes,
    )


async def lock_join_token(tx: Transaction, token_hash: str) -> JoinTokenView | None:
    return await tx.find(
        JoinTokenView,
        "SELECT *, expires_at > now() AS valid FROM join_tokens WHERE token_hash = %(hash)s FOR UPDATE",
        hash=token_hash,
    )


async def mark_join_token_used(tx: Transaction, id: str, node_id: str) -> None:
    await tx.run("UPDATE join_tokens SET used_by_node_id = %(node)s WHERE id = %(id)s", id=id, node=node_id)


async def insert(tx: Transaction, id: str, name: str, public_key_pem: str) -> NodeRecord | None:
    return await tx.find(
        NodeRecord,
        """INSERT INTO nodes (id, name, public_key_pem, status)
           VALUES (%(id)s, %(name)s, %(key)s, 'enrolling') ON CONFLICT DO NOTHING RETURNING *""",
        id=id,
        name=name,
        key=public_key_pem,
    )


async def get(tx: Transaction, id: str) -> NodeView | None:
    return await tx.find(NodeView, _ALLOCATED + " WHERE n.id = %(id)s", id=id)


async def get_identity(tx: Transaction, id: str) -> NodeIdentity | None:
    """Read only what its agent is known by: what the agent itself reported must not keep it out."""
    return await tx.find(NodeIdentity, "SELECT * FROM nodes WHERE id = %(id)s", id=id)


async def list_all(tx: Transaction, after: str, limit: int) -> list[NodeView]:
    return await tx.fetch_all(
        NodeView, _ALLOCATED + " WHERE n.id > %(after)s ORDER BY n.id LIMIT %(limit)s", after=after, limit=limit
    )


async def list_enrolled(tx: Transaction) -> list[EnrolledNode]:
    """Nodes that have said what they have, whether or not they can take allocations now."""
    return await tx.fetch_all(
        EnrolledNode,
        """SELECT id, name, inventory FROM nodes
           WHERE inventory IS NOT NULL AND intent <> 'retired' AND revoked_at IS NULL ORDER BY id""",
    )


async def find_with_room(
    tx: Transaction,
    kind: str,
    needs: dict[str, int],
    image: str | None,
    among: list[str] | None,
    passed_over: list[str],
) -> str | None:
    """The first node that seems to have room. Lock it and look again: only then it is sure."""
    row = await tx.one(
        "SELECT n.id"
        + _WITH_USE
        + """
           WHERE n.status = 'ready' AND n.conditions = '[]'
             AND coalesce(n.inventory->'offers', '["slice"]') ? %(kind)s
             AND (%(image)s::text IS NULL OR n.inventory->'images' ? %(image)s)
             AND (%(among)s::text[] IS NULL OR n.id = ANY(%(among)s)) AND n.id <> ALL(%(passed_over)s)
             AND (%(kind)s <> 'host' OR a.ids = '{}')
             AND (n.inventory->'capacity'->>'cpus')::int - a.cpus >= %(cpus)s
             AND (n.inventory->'capacity'->>'memory_mib')::int - a.memory_mib >= %(memory_mib)s
             AND (n.inventory->'capacity'->>'disk_gib')::int - a.disk_gib - v.disk_gib >= %(disk_gib)s
             AND (n.inventory->'capacity'->>'gpus')::int - a.gpus >= %(gpus)s
           ORDER BY n.id LIMIT 1""",
        kind=kind,
        image=image,
        among=among,
        passed_over=passed_over,
        **needs,
    )
    return row["id"] if row else None


async def list_ready(tx: Transaction) -> list[NodeView]:
    return await tx.fetch_all(NodeView, _ALLOCATED + " WHERE n.status = 'ready' AND n.conditions = '[]' ORDER BY n.id")


async def lock(tx: Transaction, id: str) -> NodeView | None:
    """With what is allocated of it, as of now that nobody else can claim any.

    The lock lets through what only refers to a node, as a task does: who orders something waits for nobody."""
    await tx.one("SELECT 1 FROM nodes WHERE id = %(id)s FOR NO KEY UPDATE", id=id)
    return await get(tx, id)


async def try_lock(tx: Transaction, id: str) -> NodeView | None:
    """The same, but without waiting: None where somebody else has it."""
    query = "SELECT 1 FROM nodes WHERE id = %(id)s FOR NO KEY UPDATE SKIP LOCKED"
    return await get(tx, id) if await tx.one(query, id=id) else None


async def connected(
    tx: Transaction, id: str, inventory: Inventory, conditions: Sequence[NodeCondition]
) -> NodeRecord | None:
    """Give it the status that operators want of it; None where nothing is new."""
    return await tx.find(
        NodeRecord,
        """UPDATE nodes SET status = intent, inventory = %(inventory)s, conditions = %(conditions)s,
               inventory_refused = '', last_seen_at = now(), revision = revision + 1, updated_at = now()
           WHERE id = %(id)s AND revoked_at IS NULL AND intent <> 'retired'
             AND (status <> intent OR inventory IS DISTINCT FROM %(inventory)s OR conditions <> %(conditions)s
                  OR inventory_refused <> '')
           RETURNING *""",
        id=id,
        inventory=inventory.model_dump(mode="json"),
        conditions=_json_of(conditions),
    )


async def set_conditions(
    tx: Transaction, id: str, link_id: str, conditions: Sequence[NodeCondition]
) -> NodeRecord | None:
    """None where nothing is new, or where the agent has a newer connection, which has said it, too."""
    return await tx.find(
        NodeRecord,
        """UPDATE nodes SET conditions = %(conditions)s, revision = revision + 1, updated_at = now()
           WHERE id = %(id)s AND link_id = %(link)s AND conditions <> %(conditions)s RETURNING *""",
        id=id,
        link=link_id,
        conditions=_json_of(conditions),
    )


def _json_of(conditions: Sequence[NodeCondition]) -> Jsonb | None:
    return json_list([condition.model_dump(mode="json") for condition in conditions])


async def disconnected(tx: Transaction, id: str) -> NodeRecord | None:
    return await tx.find(
        NodeRecord,
        """UPDATE nodes SET status = 'offline', revision = revision + 1, updated_at = now()
           WHERE id = %(id)s AND status IN ('ready', 'cordoned', 'draining') RETURNING *""",
        id=id,
    )


async def set_intent(tx: Transaction, id: str, intent: str) -> NodeRecord:
    """Its status too, unless it is not connected; retired it is at once."""
    return await tx.fetch(
        NodeRecord,
        """UPDATE nodes SET intent = %(intent)s, revision = revision + 1, updated_at = now(),
               status = CASE WHEN %(intent)s <> 'retired' AND status IN ('offline', 'enrolling') THEN status
                             ELSE %(intent)s END
           WHERE id = %(id)s RETURNING *""",
        id=id,
        intent=intent,
    )


async def revoke_identity(tx: Transaction, id: str) -> NodeRecord:
    return await tx.fetch(
        NodeRecord,
        """UPDATE nodes SET revoked_at = now(), next_public_key_pem = NULL, rotation_requested_at = NULL,
               status = CASE status WHEN 'retired' THEN status ELSE 'offline' END,
               revision = revision + 1, updated_at = now() WHERE id = %(id)s RETURNING *""",
        id=id,
    )


async def enrol_again(tx: Transaction, name: str, public_key_pem: str) -> NodeRecord | None:
    """Only a node whose identity was revoked gets another one; it stays the node that it was."""
    return await tx.find(
        NodeRecord,
        """UPDATE nodes SET public_key_pem = %(key)s, next_public_key_pem = NULL, revoked_at = NULL,
               status = 'enrolling', revision = revision + 1, updated_at = now()
           WHERE name = %(name)s AND status <> 'retired' AND revoked_at IS NOT NULL RETURNING *""",
        name=name,
        key=public_key_pem,
    )


async def request_rotation(tx: Transaction, id: str) -> NodeRecord:
    return await tx.fetch(
        NodeRecord,
        """UPDATE nodes SET rotation_requested_at = now(), revision = revision + 1, updated_at = now()
           WHERE id = %(id)s RETURNING *""",
        id=id,
    )


async def offer_key(tx: Transaction, id: str, public_key_pem: str) -> NodeRecord | None:
    """None where that key is known already."""
    return await tx.find(
        NodeRecord,
        """UPDATE nodes SET next_public_key_pem = %(key)s, revision = revision + 1, updated_at = now()
           WHERE id = %(id)s AND public_key_pem <> %(key)s AND next_public_key_pem IS DISTINCT FROM %(key)s
           RETURNING *""",
        id=id,
        key=public_key_pem,
    )


async def take_offered_key(tx: Transaction, id: str) -> NodeRecord | None:
    """The new key was used, so the old one is worthless from now on."""
    return await tx.find(
        NodeRecord,
        """UPDATE nodes SET public_key_pem = next_public_key_pem, next_public_key_pem = NULL,
               rotation_requested_at = NULL, revision = revision + 1, updated_at = now()
           WHERE id = %(id)s AND next_public_key_pem IS NOT NULL RETURNING *""",
        id=id,
    )


async def set_differences(tx: Transaction, id: str, differences: Sequence[NodeDifference]) -> NodeRecord | None:
    """None where there were none before either."""
    return await tx.find(
        NodeRecord,
        """UPDATE nodes SET differences = %(differences)s, revision = revision + 1, updated_at = now()
           WHERE id = %(id)s AND (differences <> '[]' OR %(differences)s <> '[]'::jsonb) RETURNING *""",
        id=id,
        differences=json_list([difference.model_dump(mode="json") for difference in differences]),
    )


async def set_link(tx: Transaction, id: str, link_id: str, address: str) -> None:
    """Remember which connection is the newest: only its end makes the node offline."""
    await tx.run(
        """UPDATE nodes SET link_id = %(link)s, link_address = %(address)s, last_seen_at = now() WHERE id = %(id)s""",
        id=id,
        link=link_id,
        address=address,
    )


async def note_replaced_link(tx: Transaction, id: str) -> NodeRecord:
    return await tx.fetch(
        NodeRecord,
        """UPDATE nodes SET link_replaced_at = now(), revision = revision + 1, updated_at = now()
           WHERE id = %(id)s RETURNING *""",
        id=id,
    )


async def note_refused_inventory(tx: Transaction, id: str, sentence: str) -> NodeRecord | None:
    """None where the same was said before."""
    return await tx.find(
        NodeRecord,
        """UPDATE nodes SET inventory_refused = %(sentence)s, revision = revision + 1, updated_at = now()
           WHERE id = %(id)s AND inventory_refused <> %(sentence)s RETURNING *""",
        id=id,
        sentence=sentence,
    )


async def has_link(tx: Transaction, id: str, link_id: str) -> bool:
    row = await tx.one("SELECT 1 FROM nodes WHERE id = %(id)s AND link_id = %(link)s FOR UPDATE", id=id, link=link_id)
    return row is not None


async def is_believed(tx: Transaction, id: str, link_id: str) -> bool:
    """Whether this is the node's newest link, of an identity that counts. Locks nothing: a message that arrives once a
    newer link has said hello finds that here."""
    query = "SELECT 1 FROM nodes WHERE id = %(id)s AND link_id = %(link)s AND revoked_at IS NULL"
    return await tx.one(query, id=id, link=link_id) is not None


async def touch(tx: Transaction, id: str) -> None:
    await tx.run("UPDATE nodes SET last_seen_at = now() WHERE id = %(id)s", id=id)


async def list_silent(tx: Transaction, seconds: int) -> list[str]:
    """List the ids of connected nodes that were not heard of for so long, locked."""
    rows = await tx.all(
        """SELECT id FROM nodes WHERE status IN ('ready', 'cordoned', 'draining')
             AND last_seen_at < now() - make_interval(secs => %(seconds)s) FOR UPDATE SKIP LOCKED""",
        seconds=seconds,
    )
    return [row["id"] for row in rows]


async def insert_task(
    tx: Transaction,
    node_id: str,
    spec: Resource,
    *,
    allocation_id: str | None = None,
    volume_id: str | None = None,
    correlation_id: str | None = None,
) -> str:
    """Give a node something to do; returns the task's id."""
    task_id = ids.new_id(ids.TASK)
    await tx.run(
        """WITH written AS (
               INSERT INTO node_tasks (id, node_id, allocation_id, volume_id, spec, correlation_id)
               VALUES (%(id)s, %(node)s, %(allocation)s, %(volume)s, %(spec)s, %(correlation)s))
           SELECT pg_notify(%(channel)s, %(node)s)""",
        channel=NODE_TASKS,
        id=task_id,
        node=node_id,
        allocation=allocation_id,
        volume=volume_id,
        spec=spec.model_dump(mode="json"),
        correlation=correlation_id or tx.correlation_id,
    )
    return task_id


async def order(tx: Transaction, allocation: AllocationRecord, spec: Resource) -> str:
    """Give the node of an allocation something to do about it; returns the task's id."""
    assert allocation.node_id is not None, f"{allocation.id} is on no node"
    return await insert_task(tx, allocation.node_id, spec, allocation_id=allocation.id)


async def list_open_tasks(tx: Transaction, node_id: str) -> list[NodeTaskRecord]:
    """Who may be on a machine comes before anything else that is to be done to it."""
    return await tx.fetch_all(
        NodeTaskRecord,
        """SELECT * FROM node_tasks WHERE node_id = %(node)s AND state = 'queued'
           ORDER BY spec->>'kind' <> 'set_users', id""",
        node=node_id,
    )


async def get_task(tx: Transaction, id: str, node_id: str) -> NodeTaskRecord | None:
    return await tx.find(
        NodeTaskRecord, "SELECT * FROM node_tasks WHERE id = %(id)s AND node_id = %(node)s", id=id, node=node_id
    )


async def lock_task(tx: Transaction, id: str, node_id: str) -> NodeTaskRecord | None:
    return await tx.find(
        NodeTaskRecord,
        "SELECT * FROM node_tasks WHERE id = %(id)s AND node_id = %(node)s FOR UPDATE",
        id=id,
        node=node_id,
    )


async def finish_task(tx: Transaction, id: str, state: str) -> None:
    await tx.run("UPDATE node_tasks SET state = %(state)s, ended_at = now() WHERE id = %(id)s", id=id, state=state)


async def cancel_tasks(tx: Transaction, allocation_id: str, *, kind: str | None = None) -> None:
    """A release makes everything that was still to be done on the machine pointless; a new word the same kind."""
    await tx.run(
        """UPDATE node_tasks SET state = 'cancelled', ended_at = now()
           WHERE allocation_id = %(id)s AND state = 'queued'
             AND (%(kind)s::text IS NULL OR spec->>'kind' = %(kind)s)""",
        id=allocation_id,
        kind=kind,
    )
