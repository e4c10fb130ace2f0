"""Volumes, and which machines they are attached to.

Locks are taken in one order: allocations, then nodes, then volumes. Whoever holds a volume waits for none of
the others.
"""

from gpuaas_platform.core.database import Transaction
from gpuaas_platform.volumes.records import AttachedVolume, VolumeRecord, VolumeView

_SELECT = """
    SELECT v.*, p.tenant_id, n.name AS node_name,
           coalesce((SELECT jsonb_agg(jsonb_build_object(
                                'allocation_id', t.allocation_id, 'allocation_name', a.name, 'path', t.path,
                                'status', t.status, 'reason', t.reason) ORDER BY t.allocation_id)
                     FROM volume_attachments t JOIN allocations a ON a.id = t.allocation_id
                     WHERE t.volume_id = v.id), '[]') AS attachments
    FROM volumes v JOIN projects p ON p.id = v.project_id LEFT JOIN nodes n ON n.id = v.node_id
"""


async def insert(tx: Transaction, id: str, project_id: str, name: str, size_gib: int) -> VolumeRecord | None:
    return await tx.find(
        VolumeRecord,
        """INSERT INTO volumes (id, project_id, name, size_gib, status)
           VALUES (%(id)s, %(project)s, %(name)s, %(size)s, 'unplaced') ON CONFLICT DO NOTHING RETURNING *""",
        id=id,
        project=project_id,
        name=name,
        size=size_gib,
    )


async def get(tx: Transaction, id: str) -> VolumeView | None:
    return await tx.find(VolumeView, _SELECT + " WHERE v.id = %(id)s", id=id)


async def lock(tx: Transaction, id: str) -> VolumeView | None:
    await tx.one("SELECT 1 FROM volumes WHERE id = %(id)s FOR NO KEY UPDATE", id=id)
    return await get(tx, id)


async def list_matching(
    tx: Transaction, project_ids: list[str] | None, status: str | None, name: str | None, after: str, limit: int
) -> list[VolumeView]:
    return await tx.fetch_all(
        VolumeView,
        _SELECT
        + """ WHERE v.id > %(after)s AND (%(projects)s::text[] IS NULL OR v.project_id = ANY(%(projects)s))
               AND (%(status)s::text IS NULL OR v.status = %(status)s)
               AND (%(name)s::text IS NULL OR v.name = %(name)s) ORDER BY v.id LIMIT %(limit)s""",
        projects=project_ids,
        status=status,
        name=name,
        after=after,
        limit=limit,
    )


async def lock_of_allocation(tx: Transaction, allocation_id: str) -> list[AttachedVolume]:
    """The volumes of one machine, locked in one order, each with how it is attached to it."""
    locked = await tx.all(
        """SELECT 1 FROM volumes WHERE id IN
               (SELECT volume_id FROM volume_attachments WHERE allocation_id = %(allocation)s)
           ORDER BY id FOR NO KEY UPDATE""",
        allocation=allocation_id,
    )
    return await list_of_allocation(tx, allocation_id) if locked else []


async def list_of_allocation(tx: Transaction, allocation_id: str) -> list[AttachedVolume]:
    return await tx.fetch_all(
        AttachedVolume,
        """SELECT v.*, n.name AS node_name, t.path, t.status AS attachment_status, t.delete_volume,
                  (SELECT count(*) FROM volume_attachments o WHERE o.volume_id = v.id) AS machines
           FROM volume_attachments t JOIN volumes v ON v.id = t.volume_id LEFT JOIN nodes n ON n.id = v.node_id
           WHERE t.allocation_id = %(allocation)s ORDER BY v.id""",
        allocation=allocation_id,
    )


async def lock_of_node(tx: Transaction, node_id: str, also: list[str]) -> list[VolumeRecord]:
    """Lock the volumes of a node, and the others that are named."""
    return await tx.fetch_all(
        VolumeRecord,
        """SELECT * FROM volumes WHERE (node_id = %(node)s AND status <> 'deleted') OR id = ANY(%(also)s)
           ORDER BY id FOR NO KEY UPDATE""",
        node=node_id,
        also=also,
    )


async def place(tx: Transaction, id: str, node_id: str) -> VolumeRecord:
    return await tx.fetch(
        VolumeRecord,
        """UPDATE volumes SET status = 'placed', node_id = %(node)s, revision = revision + 1, updated_at = now()
           WHERE id = %(id)s RETURNING *""",
        id=id,
        node=node_id,
    )


async def set_status(tx: Transaction, id: str, status: str, reason: str = "") -> VolumeRecord:
    return await tx.fetch(
        VolumeRecord,
        """UPDATE volumes SET status = %(status)s, reason = %(reason)s, revision = revision + 1, updated_at = now()
           WHERE id = %(id)s RETURNING *""",
        id=id,
        status=status,
        reason=reason,
    )


async def attach(tx: Transaction, id: str, allocation_id: str, path: str, status: str) -> bool:
    """False where the machine has the volume already, or another one there."""
    done = await tx.run(
        """INSERT INTO volume_attachments (volume_id, allocation_id, path, status)
           VALUES (%(id)s, %(allocation)s, %(path)s, %(status)s) ON CONFLICT DO NOTHING""",
        id=id,
        allocation=allocation_id,
        path=path,
        status=status,
    )
    return done == 1


async def set_attachment(tx: Transaction, id: str, allocation_id: str, status: str, reason: str = "") -> None:
    await tx.run(
        """UPDATE volume_attachments SET status = %(status)s, reason = %(reason)s
           WHERE volume_id = %(id)s AND allocation_id = %(allocation)s""",
        id=id,
        allocation=allocation_id,
        status=status,
        reason=reason,
    )


async def delete_with_machine(tx: Transaction, id: str, allocation_id: str) -> None:
    await tx.run(
        """UPDATE volume_attachments SET delete_volume = true
           WHERE volume_id = %(id)s AND allocation_id = %(allocation)s""",
        id=id,
        allocation=allocation_id,
    )


async def detach(tx: Transaction, id: str, allocation_id: str) -> None:
    await tx.run(
        "DELETE FROM volume_attachments WHERE volume_id = %(id)s AND allocation_id = %(allocation)s",
        id=id,
        allocation=allocation_id,
    )


async def touch(tx: Transaction, id: str) -> VolumeRecord:
    """Count a change of its attachments, which are a part of it."""
    sql = "UPDATE volumes SET revision = revision + 1, updated_at = now() WHERE id = %(id)s RETURNING *"
    return await tx.fetch(VolumeRecord, sql, id=id)
