"""Allocations and their timeline."""

from typing import LiteralString

from gpuaas_contract.allocations import Shape
from gpuaas_contract.events import AgentStep, AllocationEvent
from gpuaas_platform.allocations.records import AllocationFilter, AllocationRecord, AllocationView, TimelineEntryRecord
from gpuaas_platform.core.database import Transaction

_SELECT = """
    SELECT a.*, coalesce(p.network_index, t.network_index) AS network_index,
           u.started_at AS charged_from, u.ended_at AS charged_until,
           u.started_at IS NOT NULL AND u.ended_at IS NULL AS charged,
           coalesce(a.address, a.shape->'external'->>'address', n.inventory->>'address') AS address,
           coalesce((SELECT jsonb_agg(jsonb_build_object(
                                'volume_id', v.id, 'name', v.name, 'path', x.path, 'status', x.status,
                                'reason', x.reason) ORDER BY x.path)
                     FROM volume_attachments x JOIN volumes v ON v.id = x.volume_id
                     WHERE x.allocation_id = a.id), '[]') AS volumes,
           coalesce((SELECT array_agg(DISTINCT m.instance_id) FROM members m
                     WHERE m.allocation_id = a.id AND m.status <> 'removed'), '{}') AS instance_ids
    FROM allocations a JOIN tenants t ON t.id = a.tenant_id LEFT JOIN projects p ON p.id = a.project_id
    LEFT JOIN usage_records u ON u.allocation_id = a.id AND u.kind = 'charged'
    LEFT JOIN nodes n ON n.id = a.node_id
"""


async def insert(
    tx: Transaction,
    id: str,
    tenant_id: str,
    project_id: str | None,
    name: str,
    shape: Shape,
    image: str | None,
) -> AllocationRecord | None:
    """Its name is its host name, too. None where another live allocation of the owner has it."""
    return await tx.find(
        AllocationRecord,
        # Its first host certificate comes with the machine; only where it did not, another is due an hour later.
        """INSERT INTO allocations (id, tenant_id, project_id, name, hostname, shape, image, status, correlation_id,
                                    host_certificate_due_at)
           VALUES (%(id)s, %(tenant)s, %(project)s, %(name)s, %(name)s, %(shape)s, %(image)s, 'requested',
                   %(correlation)s, now() + interval '1 hour')
           ON CONFLICT DO NOTHING RETURNING *""",
        id=id,
        tenant=tenant_id,
        project=project_id,
        name=name,
        shape=shape.model_dump(mode="json"),
        image=image,
        correlation=tx.correlation_id,
    )


async def get(tx: Transaction, id: str) -> AllocationView | None:
    return await tx.find(AllocationView, _SELECT + " WHERE a.id = %(id)s", id=id)


async def list_by_ids(tx: Transaction, ids: list[str], *, lock: bool) -> list[AllocationView]:
    """In the order of their ids, in which they are also locked."""
    if lock:
        await tx.all("SELECT 1 FROM allocations WHERE id = ANY(%(ids)s) ORDER BY id FOR UPDATE", ids=ids)
    return await tx.fetch_all(AllocationView, _SELECT + " WHERE a.id = ANY(%(ids)s) ORDER BY a.id", ids=ids)


async def lock(tx: Transaction, id: str) -> AllocationView | None:
    await tx.one("SELECT 1 FROM allocations WHERE id = %(id)s FOR UPDATE", id=id)
    return await get(tx, id)


async def lock_asking(tx: Transaction, instance_id: str) -> None:
    """Machines that wait for an answer of the instance: a request that ends the questions has them to itself."""
    await tx.all(
        """SELECT 1 FROM allocations WHERE activity = 'asking' AND id IN
             (SELECT allocation_id FROM members WHERE instance_id = %(instance)s) ORDER BY id FOR UPDATE""",
        instance=instance_id,
    )


async def list_matching(
    tx: Transaction, owner_ids: list[str] | None, filters: AllocationFilter, after: str, limit: int
) -> list[AllocationView]:
    return await tx.fetch_all(
        AllocationView,
        _SELECT
        + """ WHERE a.id > %(after)s AND (%(owners)s::text[] IS NULL OR a.owner_id = ANY(%(owners)s))
               AND (%(status)s::text IS NULL OR a.status = %(status)s)
               AND (%(name)s::text IS NULL OR a.name = %(name)s)
               AND (%(node)s::text IS NULL OR a.node_id = %(node)s) ORDER BY a.id LIMIT %(limit)s""",
        owners=owner_ids,
        status=filters.status,
        name=filters.name,
        node=filters.node_id,
        after=after,
        limit=limit,
    )


async def list_of_node(tx: Transaction, node_id: str, also: list[str]) -> list[AllocationView]:
    """Lock, in one order, the allocations that a node carries and the others that are named."""
    return await tx.fetch_all(
        AllocationView,
        _SELECT
        + """ WHERE (a.node_id = %(node)s AND a.status <> 'released') OR a.id = ANY(%(also)s)
              ORDER BY a.id FOR UPDATE OF a""",
        node=node_id,
        also=also,
    )


async def has_waiting(tx: Transaction) -> bool:
    return await tx.one("SELECT 1 FROM allocations WHERE status = 'requested' LIMIT 1") is not None


async def list_waiting(tx: Transaction, only: list[str] | None) -> list[AllocationView]:
    return await tx.fetch_all(
        AllocationView,
        _SELECT
        + """ WHERE a.status = 'requested' AND (%(only)s::text[] IS NULL OR a.id = ANY(%(only)s))
              ORDER BY a.id FOR UPDATE OF a SKIP LOCKED""",
        only=only,
    )


async def lock_addresses(tx: Transaction, owner_id: str, *, wait: bool) -> bool:
    """So that no two machines of an owner are given one address. False where that would take waiting."""
    kind: LiteralString = "pg_advisory_xact_lock" if wait else "pg_try_advisory_xact_lock"
    row = await tx.one(f"SELECT {kind}(hashtextextended(%(owner)s, 2)) AS held", owner=owner_id)
    return wait or (row is not None and row["held"])


async def list_taken_addresses(tx: Transaction, owner_id: str) -> set[str]:
    rows = await tx.all(
        """SELECT address FROM allocations
           WHERE owner_id = %(owner)s AND status <> 'released' AND address IS NOT NULL""",
        owner=owner_id,
    )
    return {row["address"] for row in rows}


async def place(tx: Transaction, id: str, node_id: str, address: str, image: str | None) -> AllocationRecord:
    return await tx.fetch(
        AllocationRecord,
        """UPDATE allocations SET status = 'provisioning', reason = '', node_id = %(node)s,
               address = %(address)s, image = coalesce(image, %(image)s), revision = revision + 1, updated_at = now()
           WHERE id = %(id)s RETURNING *""",
        id=id,
        node=node_id,
        address=address,
        image=image,
    )


async def place_on_host(tx: Transaction, id: str, node_id: str, shape: Shape) -> AllocationRecord:
    """A whole host keeps the address that it has, and gives all that it has."""
    return await tx.fetch(
        AllocationRecord,
        """UPDATE allocations SET status = 'provisioning', reason = '', node_id = %(node)s,
               shape = %(shape)s, revision = revision + 1, updated_at = now()
           WHERE id = %(id)s RETURNING *""",
        id=id,
        node=node_id,
        shape=shape.model_dump(mode="json"),
    )


async def set_status(tx: Transaction, id: str, status: str, reason: str = "") -> AllocationRecord:
    """Whatever was being done to the machine is over with its old status."""
    return await tx.fetch(
        AllocationRecord,
        """UPDATE allocations SET status = %(status)s, reason = %(reason)s, activity = NULL, wanted_shape = NULL,
               asked_operation_ids = '{}',
               revision = revision + 1, updated_at = now() WHERE id = %(id)s RETURNING *""",
        id=id,
        status=status,
        reason=reason,
    )


async def rename(tx: Transaction, id: str, name: str) -> AllocationRecord | None:
    """None where another live allocation of the owner has the name."""
    return await tx.find(
        AllocationRecord,
        """UPDATE allocations a SET name = %(name)s, revision = revision + 1, updated_at = now()
           WHERE id = %(id)s AND NOT EXISTS (
               SELECT 1 FROM allocations b WHERE b.owner_id = a.owner_id AND b.id <> a.id
                 AND b.status <> 'released' AND (b.name = %(name)s OR b.hostname = %(name)s))
           RETURNING *""",
        id=id,
        name=name,
    )


async def begin_activity(
    tx: Transaction, id: str, activity: str, wanted_shape: Shape | None, asked: list[str] | None = None
) -> AllocationRecord:
    return await tx.fetch(
        AllocationRecord,
        """UPDATE allocations SET activity = %(activity)s, wanted_shape = %(shape)s, reason = '',
               asked_operation_ids = %(asked)s, revision = revision + 1, updated_at = now()
           WHERE id = %(id)s RETURNING *""",
        id=id,
        activity=activity,
        shape=None if wanted_shape is None else wanted_shape.model_dump(mode="json"),
        asked=asked or [],
    )


async def end_activity(tx: Transaction, id: str, shape: Shape, reason: str) -> AllocationRecord:
    return await tx.fetch(
        AllocationRecord,
        """UPDATE allocations SET activity = NULL, wanted_shape = NULL, shape = %(shape)s, reason = %(reason)s,
               asked_operation_ids = '{}', revision = revision + 1, updated_at = now() WHERE id = %(id)s RETURNING *""",
        id=id,
        shape=shape.model_dump(mode="json"),
        reason=reason,
    )


async def touch(tx: Transaction, id: str) -> AllocationRecord:
    """Count a change of something that it shows and that is kept elsewhere."""
    return await tx.fetch(
        AllocationRecord,
        "UPDATE allocations SET revision = revision + 1, updated_at = now() WHERE id = %(id)s RETURNING *",
        id=id,
    )


async def record(tx: Transaction, row: AllocationRecord, step: AllocationEvent | AgentStep, message: str) -> None:
    """Add a step to an allocation's timeline, and tell it in the change feed."""
    await tx.run(
        """INSERT INTO allocation_timeline (allocation_id, step, message, correlation_id)
           VALUES (%(id)s, %(step)s, %(message)s, %(correlation)s)""",
        id=row.id,
        step=step.value,
        message=message,
        correlation=tx.correlation_id,
    )
    await tx.changed(step, row, message=message, project_id=row.project_id)


async def timeline(tx: Transaction, id: str, step: str | None, correlation_id: str | None) -> list[TimelineEntryRecord]:
    """How long a step took does not depend on which ones are shown."""
    return await tx.fetch_all(
        TimelineEntryRecord,
        """SELECT * FROM (
               SELECT *, extract(epoch FROM lead(at) OVER (ORDER BY id) - at)::float8 AS duration_seconds
               FROM allocation_timeline WHERE allocation_id = %(id)s) steps
           WHERE (%(step)s::text IS NULL OR step = %(step)s)
             AND (%(correlation)s::text IS NULL OR correlation_id = %(correlation)s) ORDER BY id""",
        id=id,
        step=step,
        correlation=correlation_id,
    )
