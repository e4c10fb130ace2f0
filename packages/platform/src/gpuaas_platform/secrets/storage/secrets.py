"""Run-time secrets of app instances."""

from typing import Any

from gpuaas_platform.core.database import Row, Transaction
from gpuaas_platform.instances.records import InstanceView

_SELECT = """
    SELECT s.*, p.tenant_id, i.app_slug FROM secrets s JOIN projects p ON p.id = s.project_id
    JOIN instances i ON i.id = s.instance_id WHERE s.deleted_at IS NULL
"""


async def insert(tx: Transaction, id: str, instance: InstanceView, name: str, spec: dict[str, Any]) -> Row | None:
    """None where another request was faster."""
    return await tx.one(
        """INSERT INTO secrets (id, project_id, instance_id, name, spec)
           VALUES (%(id)s, %(project)s, %(instance)s, %(name)s, %(spec)s) ON CONFLICT DO NOTHING RETURNING *""",
        id=id,
        project=instance.project_id,
        instance=instance.id,
        name=name,
        spec=spec,
    )


async def get(tx: Transaction, id: str) -> Row | None:
    return await tx.one(_SELECT + " AND s.id = %(id)s", id=id)


async def get_by_name(tx: Transaction, instance_id: str, name: str) -> Row | None:
    return await tx.one(
        _SELECT + " AND s.instance_id = %(instance)s AND s.name = %(name)s", instance=instance_id, name=name
    )


async def lock(tx: Transaction, id: str) -> Row | None:
    await tx.one("SELECT 1 FROM secrets WHERE id = %(id)s FOR UPDATE", id=id)
    return await get(tx, id)


async def list_of(tx: Transaction, instance_id: str, after: str, limit: int) -> list[Row]:
    return await tx.all(
        _SELECT + " AND s.instance_id = %(instance)s AND s.id > %(after)s ORDER BY s.id LIMIT %(limit)s",
        instance=instance_id,
        after=after,
        limit=limit,
    )


async def count_of(tx: Transaction, instance_id: str) -> int:
    row = await tx.one("SELECT count(*) AS count FROM secrets WHERE instance_id = %(id)s", id=instance_id)
    assert row is not None
    return int(row["count"])


async def touch(tx: Transaction, id: str) -> Row:
    row = await tx.one(
        "UPDATE secrets SET revision = revision + 1, updated_at = now() WHERE id = %(id)s RETURNING *", id=id
    )
    assert row is not None
    return row


async def end_of_instance(tx: Transaction, instance_id: str) -> list[Row]:
    """All of them, with their owner."""
    return await tx.all(
        """UPDATE secrets SET deleted_at = now(), revision = revision + 1, updated_at = now()
           WHERE instance_id = %(id)s AND deleted_at IS NULL RETURNING *""",
        id=instance_id,
    )
