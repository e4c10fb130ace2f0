"""Run-time secrets of app instances."""

from gpuaas_contract.secrets import SecretSpec
from gpuaas_platform.core.database import Transaction
from gpuaas_platform.instances.records import InstanceView
from gpuaas_platform.secrets.records import SecretRecord, SecretView

# Versions that were published before there were readers have none.
_SELECT = """
    SELECT s.*, p.tenant_id, i.app_slug,
           coalesce((SELECT d->'readable_by' FROM jsonb_array_elements(v.manifest->'secrets') d
                     WHERE d->>'name' = s.name), '[]') AS readable_by
    FROM secrets s JOIN projects p ON p.id = s.project_id JOIN instances i ON i.id = s.instance_id
         JOIN app_versions v ON v.id = i.app_version_id
    WHERE s.deleted_at IS NULL
"""


async def insert(tx: Transaction, id: str, instance: InstanceView, name: str, spec: SecretSpec) -> SecretRecord | None:
    """Return None where another request was faster."""
    return await tx.find(
        SecretRecord,
        """INSERT INTO secrets (id, project_id, instance_id, name, spec)
           VALUES (%(id)s, %(project)s, %(instance)s, %(name)s, %(spec)s) ON CONFLICT DO NOTHING RETURNING *""",
        id=id,
        project=instance.project_id,
        instance=instance.id,
        name=name,
        spec=spec.model_dump(mode="json"),
    )


async def get(tx: Transaction, id: str) -> SecretView | None:
    return await tx.find(SecretView, _SELECT + " AND s.id = %(id)s", id=id)


async def get_by_name(tx: Transaction, instance_id: str, name: str) -> SecretView | None:
    return await tx.find(
        SecretView,
        _SELECT + " AND s.instance_id = %(instance)s AND s.name = %(name)s",
        instance=instance_id,
        name=name,
    )


async def lock(tx: Transaction, id: str) -> SecretView | None:
    await tx.one("SELECT 1 FROM secrets WHERE id = %(id)s FOR UPDATE", id=id)
    return await get(tx, id)


async def list_of(tx: Transaction, instance_id: str, after: str, limit: int) -> list[SecretView]:
    return await tx.fetch_all(
        SecretView,
        _SELECT + " AND s.instance_id = %(instance)s AND s.id > %(after)s ORDER BY s.id LIMIT %(limit)s",
        instance=instance_id,
        after=after,
        limit=limit,
    )


async def count_of(tx: Transaction, instance_id: str) -> int:
    row = await tx.one("SELECT count(*) AS count FROM secrets WHERE instance_id = %(id)s", id=instance_id)
    assert row is not None
    return int(row["count"])


async def touch(tx: Transaction, id: str) -> SecretRecord:
    sql = "UPDATE secrets SET revision = revision + 1, updated_at = now() WHERE id = %(id)s RETURNING *"
    return await tx.fetch(SecretRecord, sql, id=id)


async def end_of_instance(tx: Transaction, instance_id: str) -> list[SecretRecord]:
    """End all secrets of an instance."""
    return await tx.fetch_all(
        SecretRecord,
        """UPDATE secrets SET deleted_at = now(), revision = revision + 1, updated_at = now()
           WHERE instance_id = %(id)s AND deleted_at IS NULL RETURNING *""",
        id=instance_id,
    )
